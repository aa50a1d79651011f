"""What `record`, `run` and `attach` have in common: their options, and a recorder that is left beside the job."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from probe.errors import ProbeError

from .attaching import say_line
from .options import size
from .session import say

Function = Callable[..., Any]
_LAST_ROWS_S = 30.0  # a recorder writes them in one or two, once it has seen that the job is over


@dataclass(frozen=True)
class Recorded:
    """Where to record, and how much to keep.  jobs: folders that a recorder has been started for."""

    folder: str
    keep: float | None = None
    days: float | None = None
    jobs: list[str] = field(default_factory=list)

    def start(self, endpoint: str, name: str = "", follow: int = 0, key: str | None = None) -> None:
        """Leave a recorder beside the job.  follow: a process as long as which ranks may come.  Raises ProbeError."""
        from probe.record.detached import start

        order = {"folder": os.path.abspath(self.folder), "name": name, "bytes": self.keep, "days": self.days}
        self.jobs.append(start(endpoint, {**order, "follow": follow}, key))
        say(f"Recording into {self.jobs[-1]} until the job ends.")

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
                        help="Remove recorded rows that are older.")(function)  # fmt: skip
    return click.option("--keep", callback=_size_or_none, metavar="SIZE",
                        help="Remove the oldest recorded rows beyond this: 10GB.")(days)  # fmt: skip


def record_option(function: Function) -> Function:
    """--record DIR of verbs that attach, as the argument `recorded`: a folder or None."""
    return click.option("--record", "recorded", type=click.Path(), metavar="DIR",
                        help="Record the job into DIR until it ends.")(function)  # fmt: skip


def telling(pid: int, recorded: Recorded | None, tell: Callable[[Any], object] = say_line) -> Callable[[Any], object]:
    """What tells each rank that has its agent, and starts to record once the first one has.  pid: what starts them."""
    if recorded is None:
        return tell
    begun = list[int]()

    def told(attached: Any) -> None:
        tell(attached)
        if not begun:
            begun.append(attached.pid)
            try:
                recorded.start(str(pid), follow=pid)
            except ProbeError as error:
                say(f"Not recorded: {error}")

    return told
