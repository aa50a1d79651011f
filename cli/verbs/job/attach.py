"""`probe attach PID …`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from probe.errors import ProbeError, UsageError
from probe.text import title

from ...attaching import Wanted, attach_as_they_come, attach_each, checked_name, name_option
from ...choosing import check_is_one_job, ranks_of
from ...offers import processes
from ...options import pid_of, process_option, timeout_option
from ...output.formats import Output, output_options
from ...output.result import Records
from ...recording import Recorded, keep_options, record_option, telling
from ...session import say

if TYPE_CHECKING:
    from probe.attach import Attached

Ranks = Mapping[int, int | None]  # pid -> rank


@click.command("attach")
@click.argument("words", nargs=-1, metavar="PID...", shell_complete=processes)
@process_option
@timeout_option(10.0, "Seconds that each process may take.")
@click.option("--follow", is_flag=True, help="Stay until these PIDs end, and attach to ranks they start later.")
@click.option("--all", "every_job", is_flag=True, help="Attach to every job below a PID, if there are several.")
@name_option
@click.option("--listen", "place", metavar="HOST[:PORT]",
              help="Also accept queries from other hosts, at PORT or any free port. Needs a key.")  # fmt: skip
@click.option("--no-server", is_flag=True,
              help="Start no server now. The next command starts one, unless PROBE_NO_SERVER=1 is set.")  # fmt: skip
@click.option("--no-devices", is_flag=True, help="Leave GPUs and NCCL alone: record nothing on them.")
@click.option(
    "--key", type=click.Path(), metavar="FILE", help="Only holders of this key may query. Default: $PROBE_KEY."
)
@record_option
@keep_options
@output_options
def command(
    words: Sequence[str], endpoints: Sequence[str], timeout: float, follow: bool, every_job: bool, name: str | None,
    place: str | None, key: str | None, no_server: bool, no_devices: bool,
    recorded: str | None, keep: float | None, keep_days: float | None, output: Output,
) -> None:  # fmt: skip
    """Attach to a running job: all ranks under each PID.

    The job needs no preparation and keeps training. An agent that is already there stays. With --follow, ranks that an
    elastic restart starts later are attached to as well.

    With --listen, key holders on other hosts can query all ranks of this host over an encrypted connection (see
    probe key create). probe list shows the port.

    \b
    Example:
      probe attach 4242                  the pid of torchrun, or of one process
      probe attach 4250 4251             the pids of ranks (srun, mpirun)
      probe attach --follow 4242         also after restarts
      probe attach --all 4000            every job below a shell
      probe attach --name exp7 4242      then: probe exp7 query "SELECT …"
      probe attach --record runs 4242    then, at any time: probe runs query "SELECT …"
      probe attach --listen 0.0.0.0:29600 --key job.key 4242
    """
    pids = [pid_of(word) for word in dict.fromkeys((*endpoints, *words))]
    if not pids:
        raise UsageError("No pid given.", "For example: probe attach 4242. probe list shows what is running.")
    if place is not None and no_server:
        raise UsageError("--listen needs the server that --no-server forbids.", "Give one of them.")
    wanted = Wanted(timeout, checked_name(name), server=not no_server, devices=not no_devices)
    if place is not None:
        from probe.attach.listening import listen

        wanted = replace(wanted, listen=listen(place, key))
    elif key is not None:
        raise UsageError("--key is for --listen.", "For example: --listen 0.0.0.0 --key job.key")
    if follow and not output.is_default:
        raise UsageError("--follow prints a line for each rank as it comes, and no rows.", "Leave out one of them.")
    into = Recorded(recorded, keep, keep_days) if recorded else None
    if follow:
        for pid in pids if not every_job else ():
            check_is_one_job(pid)
        attach_as_they_come(pids, replace(wanted, tell=telling(pids, into, wanted.tell)))
        return
    ranks, endpoint = ranks_of(pids, every_job), ",".join(map(str, pids))
    found: list[Attached] = []
    try:
        _attach(ranks, wanted, output, found)
    except ProbeError:
        if into is not None and found:
            into.start_if_possible(endpoint, wanted.name)
            _say_not_recorded(ranks, found)
        raise
    if into is not None:
        into.start(endpoint, wanted.name)


def _attach(ranks: Ranks, wanted: Wanted, output: Output, found: list[Attached]) -> None:
    """A line or a row for each rank that has its agent, also if others have failed.  found: gets each of them."""
    from probe.attach import Attached

    def tell(attached: Attached) -> None:
        found.append(attached)
        if output.is_default:
            wanted.tell(attached)

    try:
        attach_each(ranks, replace(wanted, tell=tell))
    finally:
        if not output.is_default:
            output.show(Records.of(Attached, found))


def _say_not_recorded(ranks: Ranks, found: Sequence[Attached]) -> None:
    attached = {each.pid for each in found}
    say(f"Not recorded: {title(sorted(rank or 0 for pid, rank in ranks.items() if pid not in attached))}.")
