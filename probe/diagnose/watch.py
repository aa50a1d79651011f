"""Watching a job for the rules on tables: its steps sampled more often for a while, its stacks sampled from outside.

Called by probe.diagnose.why.  Invariant: what it switches on ends by itself, also if the command is killed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from ..errors import Interrupted, ProbeError
from ..streams import EVERY
from ..text import grouped
from .hang.report import Report
from .rule import Tables
from .stepless import is_at_model
from .watched import BLOCK, Watched

SECONDS = 25.0
_MORE_S = 5.0  # if that has left something open
FIRST_LOOK_S = 10.0  # after which a dominant cause is plain, where steps are short
MOST_S = 300.0  # that a watch takes by itself, where steps are long
FIRST_S = 120.0  # to wait for a whole step: of those of a minute the second one is whole
NEVER_S = 20.0  # where none has ever ended, and no model is at work: this job may take none
_PLAIN_S, _PROFILE_S = 5.0, 5.0  # of these, before profiles are taken; each of them
_STEPS = 40  # at least
_WANTED = 120  # sampled steps
_PAUSE_S = 0.5  # between two questions
_FIRST = 3  # steps after the attach, in which torch's caches and ours fill
_READ_S, _READ_STEPS = 5.0, 3  # to wait for a value of the job: it is read between two steps
_MOST_READ_S = 60.0  # however long steps are: nothing shows that it is waited for
_SEEN = (
    "SELECT COALESCE(MAX(step), 0) AS last, MEDIAN(duration) AS step_s, COUNT(DISTINCT step) AS steps "
    f"FROM python.step_trace WHERE step > (SELECT MAX(step) FROM python.step_trace) - {_STEPS}"
)


class Job(Tables, Protocol):
    """What `why` asks of a Connection."""

    unreached: list[Any]

    def hang(self, look_s: float = 1.0) -> Report: ...

    def profile(self, seconds: float) -> object: ...

    def set(self, **settings: Any) -> object: ...

    def eval(self, code: str, *, ranks: Sequence[int], timeout: float, write: bool) -> Any: ...


Progress = Callable[[float], AbstractContextManager[object]]
NO_PROGRESS: Progress = lambda seconds: nullcontext()  # noqa: E731


def watch(job: Job, seconds: float | None, progress: Progress) -> Generator[Watched]:
    """Watch the job for so long, by default for 25 s, or longer where its steps are; what to judge: by default after a
    first look, too, if that has steps enough, and after some seconds more.  Who has found a cause need not go on.
    Nothing where no whole step comes, for that tells how long steps take.

    progress: entered for the time of the wait and for that of the watch, with their seconds; once for both if they are
    given.  Raises SilentError, Interrupted.
    """
    with nullcontext() if seconds is None else progress(seconds):
        begun = time.monotonic()
        of_parts = progress if seconds is None else NO_PROGRESS
        never_s = NEVER_S if seconds is None else math.inf
        last, step_s, steps = _first_whole(job, FIRST_S if seconds is None else seconds, never_s, of_parts)
        if step_s is None:
            return
        skipped = max(0, _FIRST - steps)
        first, whole = last + 1 + skipped, seconds or min(MOST_S, max(SECONDS, (_STEPS + skipped) * step_s))
        begun = time.monotonic() if seconds is None else begun  # who says for how long says it of all
        _sample(job, int(whole / step_s))
        read = Reader(job, min(_MOST_READ_S, max(_READ_S, _READ_STEPS * step_s)))
        kept, why_nots = dict[Any, Any](), list[str]()

        def watched(is_whole: bool) -> Watched:
            took_s = time.monotonic() - begun
            why_not = min(why_nots, key=bool, default="")  # rows of one profile are there, whatever became of the next
            return Watched(
                job, first, _seen(job)[0], took_s, why_not_profiled=why_not, read=read, elsewhere=read.elsewhere,
                is_whole=is_whole, kept=kept,
            )  # fmt: skip

        with of_parts(whole):
            if seconds is None and 2 * _STEPS * step_s <= FIRST_LOOK_S:
                why_nots.append(_profile(job, FIRST_LOOK_S))
                yield watched(is_whole=False)
            if (left := begun + whole - time.monotonic()) > 0:  # judging the first look may have taken longer
                why_nots.append(_profile(job, left))
    yield watched(is_whole=True)
    if seconds is None:
        with progress(_MORE_S):
            why_nots.append(_profile(job, _MORE_S))
        yield watched(is_whole=True)


def _first_whole(job: Job, most_s: float, never_s: float, progress: Progress) -> tuple[int, float | None, int]:
    """As _seen(), once a whole step has ended, or when that has taken too long.

    never_s: what is too long where none has ever ended, and profiles show no model at work.
    """
    seen, begun, passed_s, never = _seen(job), time.monotonic(), 0.0, False
    if seen[1] is None:
        with progress(most_s):
            while seen[1] is None and passed_s < most_s and not never:
                if not seen[2] and min(_PLAIN_S, most_s / 2) <= passed_s < NEVER_S:
                    _profile(job, min(most_s - passed_s, _PROFILE_S))
                else:
                    time.sleep(min(most_s - passed_s, _PAUSE_S))
                seen, before_s, passed_s = _seen(job), passed_s, time.monotonic() - begun
                if before_s < never_s <= passed_s:
                    never = not seen[2] and not is_at_model(job, passed_s)
    return seen


def _seen(job: Job) -> tuple[int, float | None, int]:
    """The last step that has ended, and of the last ones the usual duration, if there are any, and how many there
    are."""
    (row,) = job.query(_SEEN)
    return row["last"], row["step_s"], row["steps"]


def _sample(job: Job, steps: int) -> None:
    """Have enough of so many steps sampled, if that may be changed."""
    every = next(n for n in reversed(EVERY) if n == 1 or n * _WANTED <= steps)
    try:
        job.set(sample=every, for_steps=steps + 2 * BLOCK)
    except Interrupted:
        raise
    except ProbeError:
        job.notes = []


def _profile(job: Job, seconds: float) -> str:
    """Take a profile for so long, or only wait where it cannot be taken; why not, or ''."""
    end, why_not = time.monotonic() + seconds, ""
    try:
        job.profile(seconds)
    except Interrupted:
        raise
    except ProbeError as error:
        why_not = error.message.rstrip(".")
    while (left := end - time.monotonic()) > 0:
        job.query("SELECT 1")  # ends with Interrupted when it is cancelled
        time.sleep(min(left, _PAUSE_S))
    return why_not


class Reader:
    """What an expression is in the job on its first rank, as Python shows it; None if it cannot be told.

    answers: whether the job has, so far; one in which no boundary comes, such as a server, is asked once.
    """

    def __init__(self, job: Job, wait_s: float) -> None:
        self._job, self._wait_s, self.answers = job, wait_s, True

    def __call__(self, expression: str) -> str | None:
        return next(iter(self._read(expression, self._ranks()[:1])), None)

    def elsewhere(self, expression: str) -> list[str | None]:
        """Likewise, on the first rank of each further host."""
        return self._read(expression, self._ranks()[1:])

    def _ranks(self) -> list[int]:
        """The first of each host."""
        return [ranks[0] for ranks in grouped((each.host, each.rank or 0) for each in self._job.agents).values()]

    def _read(self, expression: str, ranks: list[int]) -> list[str | None]:
        unknown: list[str | None] = [None] * len(ranks)
        if not self.answers or not ranks:
            return unknown
        try:
            results = self._job.eval(expression, ranks=ranks, timeout=self._wait_s, write=False)
        except Interrupted:
            raise
        except ProbeError:
            results = []
        self.answers = len(results) == len(ranks)
        return [result.echo if result.ok else None for result in results] if self.answers else unknown
