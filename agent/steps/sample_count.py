"""How many samples a step trained on: the first dimension of what its model is given, once a micro step.

The forward tap asks `waiting` at each call; the engine's tap and the boundary say where a micro step begins.  The one
invariant: of a micro step exactly one call counts, the first on the training thread that records gradients.
"""

from __future__ import annotations

import sys
from typing import Any

_DEEP = 4  # containers in one another
_CONTAINERS = (tuple, list, dict)
_NOT_TOLD = -1  # a PackedSequence: its tensor's first dimension is no batch


class SampleCount:
    """waiting: empty, but for one element from the beginning of a micro step to its first call."""

    def __init__(self) -> None:
        self.waiting: list[None] = []
        self.thread: int | None = None  # that trains
        self._sum = 0
        self._known = True
        self._passes: list[None] = []

    def count(self, args: Any, kwargs: Any) -> None:
        """In the forward tap, while one waits: this may be the call."""
        torch = sys.modules["torch"]
        if not torch.is_grad_enabled() or sys.modules["_thread"].get_ident() != self.thread:
            return  # an evaluation, or somebody else's call
        if torch._C._get_tracing_state() is not None:
            return  # there, to ask for a size is an operation of the graph
        self.waiting.pop()
        size = _first_size((args, kwargs), torch.Tensor, _DEEP)
        self._sum += size
        self._known = self._known and size > 0

    def pass_begins(self) -> None:
        """In the engine's tap; forwards that are run again inside are no micro step's first."""
        self._passes.append(None)
        self.waiting.clear()

    def pass_ends(self) -> None:
        self._passes.pop()
        if not self._passes:
            self._wait()

    def take(self, thread: int) -> int:
        """At a boundary, on the training thread: the samples since the last one, 0 if they are not known."""
        found = self._sum if self._known else 0
        self._sum, self._known, self.thread = 0, True, thread
        self._wait()
        return found

    def _wait(self) -> None:
        self.waiting[:] = [None]


def _first_size(value: Any, tensor_type: type, deep: int) -> int:
    """First dimension of the first tensor that has one, 0 if there is no tensor."""
    if isinstance(value, tensor_type):
        size = value.shape[0] if value.shape else 0  # type: ignore[attr-defined]
        return size if type(size) is int else 0
    if deep and isinstance(value, _CONTAINERS):
        if hasattr(type(value), "batch_sizes"):
            return _NOT_TOLD
        for each in value.values() if isinstance(value, dict) else value:
            size = _first_size(each, tensor_type, deep - 1)
            if size:
                return size
    return 0
