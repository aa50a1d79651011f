"""What `record`, `run` and `attach` have in common: their options, and a recorder that is left beside the job."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import click

from probe.errors import ProbeError

from .attaching import say_line, who
from .options import size
from .session import say

Function = Callable[..., Any]
_LAST_ROWS_S = 30.0  # a recorder writes them in one or two, once it has seen that the job is over
_LONG_S = 1.0  # of a start that fails: after a longer one the next waits as long again, and ranks do not


@dataclass(frozen=True)
class Recorded:
    """Where to record, and how much to keep.  jobs: folders that a recorder has been started for."""

    folder: str
    keep: float | None = None
    days: float | None = None
    jobs: list[str] = field(default_factory=list)

    def start(self, endpoint: str, name: str = "", follow: Sequence[int] = (), key: str | None = None) -> None:
        """Leave a recorder beside the job.  follow: processes as long as which ranks may come.  Raises ProbeError."""
        from probe.record.detached import start

        order = {"folder": os.path.abspath(self.folder), "name": name, "bytes": self.keep, "days": self.days}
        self.jobs.append(start(endpoint, {**order, "follow": [*follow]}, key))
        say(f"Recording into {self.jobs[-1]} until the job ends.")

    def start_if_possible(self, endpoint: str, name: str = "", follow: Sequence[int] = ()) -> None:
        """Likewise, where attaching matters more: what keeps it from that is said, and not raised."""
        try:
            self.start(endpoint, name, follow)
        except ProbeError as error:
            say(f"Not recorded: {error}")

    def wait(self) -> None:
        """Until the last rows of a job that has ended are in the files, so that the next command sees them."""
        from probe.record import lock

        for job in self.jobs:
            if not lock.wait(Path(job), _LAST_ROWS_S):
                say(f"{job} is still being written.")


def _size_or_none(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    return None if value is None else size(ctx, param, value)


def keep_options(function: Function) -> Function:
    """--keep and --keep-days, as the arguments `keep` (bytes) and `keep_days`."""
    days = click.option("--keep-days", type=click.FloatRange(min=0, min_open=True), metavar="N",
                        help="Remove recorded rows older than N days.")(function)  # fmt: skip
    return click.option("--keep", callback=_size_or_none, metavar="SIZE",
                        help="Keep at most SIZE, such as 10GB: the newest rows. Default: all.")(days)  # fmt: skip


def record_option(function: Function) -> Function:
    """--record DIR of verbs that attach, as the argument `recorded`: a folder or None."""
    return click.option("--record", "recorded", type=click.Path(), metavar="DIR",
                        help="Record the job into DIR until it ends.")(function)  # fmt: skip


def telling(
    pids: Sequence[int], recorded: Recorded | None, tell: Callable[[Any], object] = say_line
) -> Callable[[Any], object]:
    """What tells each rank that has its agent, and has the job recorded from the first one on.  pids: what starts them,
    or the ranks themselves."""
    if recorded is None:
        return tell
    living = dict[int, int]()  # rank -> pid
    due = 0.0  # when a recorder may be started

    def told(attached: Any) -> None:
        nonlocal due
        from probe.host.processes import has_ended

        tell(attached)
        rank, pid = attached.rank or 0, attached.pid
        if (other := living.get(rank, pid)) != pid and not has_ended(other):
            say(f"Not recorded: {who(rank, pid)}, which is of another job than pid {other}.")
            return
        living[rank] = pid
        if not recorded.jobs and (begun := monotonic()) >= due:
            recorded.start_if_possible(",".join(map(str, pids)), follow=pids)
            took_s = monotonic() - begun
            due = begun + 2 * took_s if took_s > _LONG_S else 0.0

    return told
