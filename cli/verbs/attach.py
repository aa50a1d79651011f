"""`probe attach PID …`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from probe.errors import UsageError

from ..attaching import Wanted, attach_as_they_come, attach_each, pid_of, ranks_of
from ..options import SECONDS, process_option
from ..program import VERBS

if TYPE_CHECKING:
    from probe.attach.listening import Listen


@click.command("attach")
@click.argument("words", nargs=-1, metavar="PID...")
@process_option
@click.option("--timeout", type=SECONDS, metavar="SECONDS", default=10.0, show_default=True,
              help="Seconds that each process may take.")  # fmt: skip
@click.option("--follow", is_flag=True, help="Stay until these PIDs end, and attach to ranks that they start later.")
@click.option("--name", metavar="NAME", help="Call the job so: probe NAME query …")
@click.option(
    "--listen", "place", metavar="HOST[:PORT]", help="Let other hosts ask, too, at PORT or any free one. Needs a key."
)
@click.option("--key", metavar="FILE", help="Who has this key may ask. Default: $PROBE_KEY.")
def command(
    words: Sequence[str], endpoints: Sequence[str], timeout: float, follow: bool, name: str | None, place: str | None,
    key: str | None,
) -> None:  # fmt: skip
    """Put an agent into a running job: each rank below each PID.

    The job was not prepared for it and goes on training. An agent that is there already is kept. With --follow ranks
    that an elastic restart brings up later are attached to as well.

    With --listen each rank also takes encrypted questions from other hosts, of who has the key (probe key create).
    Ranks of one host take PORT, PORT+1 and so on. probe list shows where they listen.

    \b
    Example:
      probe attach 4242                  the pid of torchrun, or of one process
      probe attach 4250 4251             the pids of ranks (srun, mpirun)
      probe attach --follow 4242         also after its restarts
      probe attach --name exp7 4242      then: probe exp7 query "SELECT …"
      probe attach --listen 0.0.0.0:29600 --key job.key 4242
    """
    pids = [pid_of(word) for word in dict.fromkeys((*endpoints, *words))]
    if not pids:
        raise UsageError("Attach to what?", "Give a pid: probe attach 4242. probe list shows who is there.")
    wanted = Wanted(timeout, checked_name(name), listen_at(place, key))
    if follow:
        attach_as_they_come(pids, wanted, click.echo)
    else:
        attach_each(ranks_of(pids), wanted, click.echo)


def listen_at(place: str | None, key: str | None) -> Listen | None:
    if place is None:
        if key is not None:
            raise UsageError("--key is for --listen.", "For example: --listen 0.0.0.0 --key job.key")
        return None
    from probe.attach.listening import listen

    return listen(place, key)


def checked_name(name: str | None) -> str:
    """A name that stands for nothing else on a command line, "" for none.  Raises UsageError."""
    from probe.client.endpoints import is_name

    if name is None or (name not in VERBS and is_name(name)):
        return name or ""
    if name in VERBS:
        what = "is a verb"
    elif name.isdigit():
        what = "would be a pid"
    else:
        what = "is empty, has one of : / , or a blank, or begins with a dash"
    raise UsageError(f"{name!r} cannot be a name: it {what}.", "Take letters, digits and dashes: --name exp7")
