"""What ends the job's steps: its optimizer, or in its absence each backward pass, or each outermost module call.

The agent's thread looks once a second.  Invariant: as long as it is not sure, nothing ends a step: a job that was
attached to in its validation has an optimizer, which will step.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from time import perf_counter_ns
from typing import Any

from .step_count import Steps

CALL = "call"
_PATIENCE_NS = 2_000_000_000  # for an optimizer, where none has been made
_LONG_NS = 60_000_000_000  # where one has: it accumulates gradients, or validates
_LEAST_PASSES = 4
_LONGER = 3  # times what an optimizer took before: it may accumulate more, or validate in between


class StepEnds:
    """by: CALL if a module call ends a step, else "": boundaries are recorded, or it is not known yet."""

    def __init__(self, steps: Steps, calls: Callable[[], int]) -> None:
        """calls: how many rows of calls there are so far."""
        self._steps, self._calls = steps, calls
        self._ended_ns: int | None = None  # when a step ended last
        self._passes = 0  # passes until then
        self._since: int | None = None  # when the job was first seen to work since then
        self._passes_since: int | None = None  # and when it was first seen to make gradients
        self._longest_ns = 0  # for which it made gradients until an optimizer stepped after all
        self.by = ""

    def are_calls(self) -> bool:
        return self.by == CALL

    def look(self, now: int = 0) -> None:
        """now: for tests."""
        steps, now = self._steps, now or perf_counter_ns()
        if steps.by_pass:
            return
        if steps.last_ns != self._ended_ns or not (steps.passes or self._calls()):
            self._step_ended()
            return
        if self._since is None:
            self._since = now
        if self._passes_since is None and steps.passes > self._passes:
            self._passes_since, self.by = now, ""
        usual = _LONG_NS if steps.anchor or optimizer_was_made() else _PATIENCE_NS
        patience = max(usual, _LONGER * self._longest_ns)
        if self._passes_since is not None:
            steps.by_pass = now - self._passes_since >= patience and steps.passes - self._passes >= _LEAST_PASSES
        elif now - self._since >= patience and not steps.anchor:
            self.by = CALL

    def _step_ended(self) -> None:
        """Not by a pass; or there was none yet."""
        steps = self._steps
        if self._passes_since is not None and steps.last_ns is not None:
            self._longest_ns = max(self._longest_ns, steps.last_ns - self._passes_since)
        self._ended_ns, self._passes = steps.last_ns, steps.passes
        self._since = self._passes_since = None
        self.by = ""


def optimizer_was_made() -> bool:
    """Whether this process has ever had an optimizer of torch: the first one of a class has its step wrapped."""
    optimizer: Any = getattr(sys.modules.get("torch.optim"), "Optimizer", None)
    return any(getattr(vars(each).get("step"), "hooked", False) for each in _subclasses(optimizer))


def _subclasses(base: Any) -> Iterator[Any]:
    todo, seen = [base] if base is not None else [], set[Any]()
    while todo:
        found = todo.pop()
        if found not in seen:
            seen.add(found)
            yield found
            todo += found.__subclasses__()
