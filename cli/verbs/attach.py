"""`probe attach PID …`."""

from __future__ import annotations

from collections.abc import Sequence

import click

from probe.errors import UsageError

from ..attaching import attach_each, pid_of, ranks_of
from ..options import SECONDS, endpoint_option


@click.command("attach")
@click.argument("words", nargs=-1, metavar="PID...")
@endpoint_option
@click.option("--timeout", type=SECONDS, metavar="SECONDS", default=10.0, show_default=True,
              help="Seconds that each process may take.")  # fmt: skip
def command(words: Sequence[str], endpoints: Sequence[str], timeout: float) -> None:
    """Put an agent into a running job: each rank below each PID.

    The job was not prepared for it and goes on training. An agent that is there already is kept.

    \b
    Example:
      probe attach 4242                  the pid of torchrun, or of one process
      probe attach 4250 4251             the pids of ranks (srun, mpirun)
    """
    pids = [pid_of(word) for word in dict.fromkeys((*endpoints, *words))]
    if not pids:
        raise UsageError("Attach to what?", "Give a pid: probe attach 4242. probe list shows who is there.")
    attach_each(ranks_of(pids), timeout, click.echo)
