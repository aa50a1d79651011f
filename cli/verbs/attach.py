"""`probe attach PID …`."""

from __future__ import annotations

from collections.abc import Sequence

import click

from probe.errors import UsageError

from ..attaching import attach_as_they_come, attach_each, pid_of, ranks_of
from ..options import SECONDS, endpoint_option


@click.command("attach")
@click.argument("words", nargs=-1, metavar="PID...")
@endpoint_option
@click.option("--timeout", type=SECONDS, metavar="SECONDS", default=10.0, show_default=True,
              help="Seconds that each process may take.")  # fmt: skip
@click.option("--follow", is_flag=True, help="Stay until these PIDs end, and attach to ranks that they start later.")
def command(words: Sequence[str], endpoints: Sequence[str], timeout: float, follow: bool) -> None:
    """Put an agent into a running job: each rank below each PID.

    The job was not prepared for it and goes on training. An agent that is there already is kept. With --follow ranks
    that an elastic restart brings up later are attached to as well.

    \b
    Example:
      probe attach 4242                  the pid of torchrun, or of one process
      probe attach 4250 4251             the pids of ranks (srun, mpirun)
      probe attach --follow 4242         also after its restarts
    """
    pids = [pid_of(word) for word in dict.fromkeys((*endpoints, *words))]
    if not pids:
        raise UsageError("Attach to what?", "Give a pid: probe attach 4242. probe list shows who is there.")
    if follow:
        attach_as_they_come(pids, timeout, click.echo)
    else:
        attach_each(ranks_of(pids), timeout, click.echo)
