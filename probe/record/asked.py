"""What a recorder asks the job while it lives: values that rules read of it, and why it stands once no step comes.

Used by probe.record.recorder; kept in job.json with the first rank, which is the one that is read, and used by
Recording.why.  Invariant: the recorder waits for no answer, and a job that does not answer is asked less and less.
"""

from __future__ import annotations

import ast
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from typing import Any

from ..client.endpoints import Resolved
from ..connection import Connection
from ..diagnose.measures.live_values import ALL_OPTIMIZERS, filled, of_frame
from ..diagnose.rules import ON_TABLES
from .job import RecordedJob

_STATES = ("compiling", "idle")  # told of a job that is not stuck, but in which no step comes
_STEPS = 10  # after which a job has all that it trains with
_AGAIN_S, _RETRY_S, _MOST_S = 300.0, 15.0, 3600.0  # until values are read anew, or tried again: each time twice as long
_LOOK_S, _MOST_LOOK_S = 60.0, 600.0  # between two looks at a job that stands: about as long as it has stood
_ANSWER_S = 2.0
# All objects are gone through once at most, and nothing is held.  It assigns to nothing: `why --since-change` takes an
# assignment to an item for a change of the user's.
_READ = """
def _probe_read(expression, found):
    try:
        if EVERY in expression and not found:
            found.append(eval(EVERY))
        return repr(eval(expression.replace(EVERY, "_probe_found[0]"), {**globals(), "_probe_found": found}))
    except Exception:  # this job has no such thing
        return None
{each: told for found in [[]] for each in EXPRESSIONS for told in [_probe_read(each, found)] if told is not None}
"""
Values = dict[str, str]


class Asked:
    """What one job was asked.  find: its agents as of now; stands_s: without a step, after which it is looked at.

    values: by expression, as Python shows them, and when; stands: the last report on a job in which no step comes, and
    its time.  Close it.
    """

    def __init__(self, job: RecordedJob, find: Callable[[], Resolved], key: str | None, stands_s: float) -> None:
        self._job, self._find, self._key, self._stands_s = job, find, key, stands_s
        self.values, self.read_ns = Values(), 0
        self.stands: dict[str, Any] | None = None
        self._due_s, self._again_s, self._look_s = 0.0, 0.0, 0.0
        self._worker = ThreadPoolExecutor(1)
        self._connection: Connection | None = None
        self._is_over = False
        self._answer: tuple[Callable[[Any], None], Future[Any]] | None = None

    def said(self) -> dict[str, Any]:
        """For the manifest."""
        return {"values": self.values, "values_wall_ns": self.read_ns, "stands": self.stands}

    def close(self) -> None:
        """Withdraw what was asked, and what is about to be."""
        self._is_over = True
        if self._connection is not None:
            self._connection.cancel()
        self._worker.shutdown(cancel_futures=True)

    def ask(self) -> bool:
        """Take an answer that has come, and ask what is due; whether anything is new.  Cost: 0.2 ms a rank.

        It costs the job one or two evals in five minutes, later in an hour; while no step comes, `hang` now and then.
        """
        before = self.said()
        self._take()
        if facts := self._job.said():
            stood_s = (time.monotonic_ns() - max(each.moved_ns or each.attached_ns for each in facts)) / 1e9
            if stood_s < self._stands_s:
                self.stands, self._look_s = None, 0.0
            if self._answer is None:
                self._begin(stood_s, max(each.count for each in facts))
        return self.said() != before

    def _begin(self, stood_s: float, steps: int) -> None:
        now = time.monotonic()
        if stood_s >= self._stands_s and now >= self._look_s:
            self._look_s = now + min(_MOST_LOOK_S, max(_LOOK_S, stood_s))
            self._answer = self._look_told, self._worker.submit(self._look)
        elif stood_s < self._stands_s and steps >= _STEPS and now >= self._due_s:
            self._answer = self._values_told, self._worker.submit(self._read, self._job.models(), self.values)

    def _take(self) -> None:
        if self._answer is not None and self._answer[1].done():
            told, future = self._answer
            self._answer = None
            told(None if future.exception() is not None else future.result())

    def _values_told(self, values: Values | None) -> None:
        self._again_s = min(_MOST_S, max(2 * self._again_s, _RETRY_S if values is None else _AGAIN_S))
        self._due_s = time.monotonic() + self._again_s
        if values is not None:
            self.values, self.read_ns = values, time.time_ns()

    def _look_told(self, seen: dict[str, Any] | None) -> None:
        self.stands = seen or self.stands

    # ---- on the worker's thread

    def _connected(self) -> Connection:
        """Raises ProbeError."""
        self._connection = job = Connection(self._find(), _ANSWER_S, self._key)
        job.is_unwanted = lambda: self._is_over
        return job

    def _read(self, models: Iterable[str], before: Values) -> Values:
        """What goes through all objects of the job only where what the loop's frame says has changed.

        Raises ProbeError.
        """
        asked = {*filled((each for rule in ON_TABLES for each in rule.asks), models)}
        costly = {each for each in asked if each != of_frame(each)}
        with self._connected() as job:
            read = partial(_answers, job, min(each.rank or 0 for each in job.agents))
            values = read(asked - costly)
            known = {each for each in costly & {*before} if values.get(of_frame(each)) == before.get(of_frame(each))}
            return values | {each: before[each] for each in known} | read(costly - known)

    def _look(self) -> dict[str, Any] | None:
        """Raises ProbeError."""
        with self._connected() as job:
            report = job.hang()
        is_told = report.hung or report.code in _STATES
        return {"wall_ns": time.time_ns(), **asdict(report)} if is_told else None


def _answers(job: Connection, rank: int, expressions: Iterable[str]) -> Values:
    """One eval, however many there are.  Raises ProbeError, and SyntaxError or ValueError if it has no answer."""
    asked = sorted(expressions)
    code = _READ.replace("EVERY", repr(ALL_OPTIMIZERS)).replace("EXPRESSIONS", repr(asked))
    (told,) = job.eval(code, ranks=[rank], write=False) if asked else (None,)
    return {} if told is None else dict(ast.literal_eval(told.echo or ""))
