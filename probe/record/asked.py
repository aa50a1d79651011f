"""What a recorder asks the job while it lives: values that rules read of it, and why it stands once no step comes.

Used by probe.record.recorder; kept in job.json with the first rank, which is the one that is read, and used by
Recording.why.  Invariant: no answer is waited for longer than some seconds, and a job that does not answer is let be.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from ..client.endpoints import Resolved
from ..connection import Connection
from ..diagnose.measures.live_values import filled, of_frame
from ..diagnose.rules import ON_TABLES
from ..diagnose.watch import Reader
from ..errors import ProbeError
from .job import RecordedJob

_STATES = ("compiling", "idle")  # told of a job that is not stuck, but in which no step comes
_AGAIN_S = 300.0  # after which values are read anew
_SOON_S = 15.0  # likewise, where somebody else kept the job from answering
_STEPS = 10  # after which a job has all that it trains with
_LOOK_S, _MOST_S = 60.0, 600.0  # between two looks at a job that stands: about as long as it has stood
_ANSWER_S = 2.0


class Asked:
    """What one job was asked.  find: its agents as of now; stands_s: without a step, after which it is looked at.

    values: by expression, as Python shows them; stands: the last report on a job in which no step comes, and its time.
    """

    def __init__(self, job: RecordedJob, find: Callable[[], Resolved], key: str | None, stands_s: float) -> None:
        self._job, self._find, self._key, self._stands_s = job, find, key, stands_s
        self.values: dict[str, str] = {}
        self.stands: dict[str, Any] | None = None
        self._due_s = dict.fromkeys(("read", "look"), 0.0)

    def said(self) -> dict[str, Any]:
        """For the manifest."""
        return {"values": self.values, "stands": self.stands}

    def ask(self, is_unwanted: Callable[[], bool]) -> bool:
        """Ask what is due; whether anything is new.  is_unwanted: whether to stop at once.

        Cost: each five minutes the evals of some expressions; while no step comes that of `hang`, now and then.
        """
        before, facts = self.said(), self._job.said()
        if not facts:
            return False
        stood_s = (time.monotonic_ns() - max(each.moved_ns or each.attached_ns for each in facts)) / 1e9
        if stood_s >= self._stands_s:
            if self._is_due("look", min(_MOST_S, max(_LOOK_S, stood_s))):
                self._look(is_unwanted)
            return self.said() != before
        self.stands, self._due_s["look"] = None, 0.0
        if max(each.count for each in facts) >= _STEPS and self._is_due("read", _AGAIN_S):
            self._read(is_unwanted)
        return self.said() != before

    def _is_due(self, what: str, again_s: float) -> bool:
        now = time.monotonic()
        if now < self._due_s[what]:
            return False
        self._due_s[what] = now + again_s
        return True

    def _read(self, is_unwanted: Callable[[], bool]) -> None:
        """What goes through all objects of the job only where what the loop's frame says has changed."""
        asked = filled((each for rule in ON_TABLES for each in rule.asks), self._job.models())
        shown = dict[str, str | None]()
        with suppress(ProbeError), self._connected(is_unwanted) as job:
            read = Reader(job)
            for each in sorted(asked, key=lambda one: one != of_frame(one)):
                less = of_frame(each)
                is_known = less != each and shown[less] == self.values.get(less)
                shown[each] = self.values.get(each) if is_known else read(each)
            told = {each: value for each, value in shown.items() if value is not None}
            self.values = told if read.answers else {**self.values, **told}
        if not read.answers:
            self._due_s["read"] = time.monotonic() + _SOON_S

    def _look(self, is_unwanted: Callable[[], bool]) -> None:
        with suppress(ProbeError), self._connected(is_unwanted) as job:
            report = job.hang()
            is_told = report.hung or report.code in _STATES
            self.stands = {"wall_ns": time.time_ns(), **asdict(report)} if is_told else None

    def _connected(self, is_unwanted: Callable[[], bool]) -> Connection:
        """Raises ProbeError."""
        job = Connection(self._find(), _ANSWER_S, self._key)
        job.is_unwanted = is_unwanted
        return job
