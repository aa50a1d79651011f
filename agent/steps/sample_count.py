"""The number of samples a step trained on: the first dimension of the model's input, once per micro step.

The forward tap checks `waiting` at each call; the engine's tap and the boundary mark where a micro step begins.
Invariant: exactly one call per micro step counts, the first one on the training thread that records gradients, of a
module in training mode; where there is none, as in a job that trains in eval mode, the last one before the pass.  It
counts once the pass begins: calls after the last one, of a metric for instance, train nothing.  Nor do those before the
first batch that a loader gives for a micro step, if others follow.
"""

from __future__ import annotations

import sys
from _thread import get_ident
from itertools import islice
from typing import Any

from ..job_signals import raised_by_handler

_MAX_DEPTH = 4  # nested containers
_MOST, _MOST_EACH = 256, 32  # values to look at, and of a container: a list of a whole corpus must not be gone through
_CONTAINERS = (tuple, list, dict)
_UNKNOWN = -1  # a PackedSequence, of whose tensor the first dimension is not the batch; a tensor without a shape


class SampleCount:
    """waiting: holds one element from the beginning of a micro step to its first call, else nothing."""

    def __init__(self) -> None:
        self.waiting: list[None] = []
        self.thread: int | None = None  # the training thread
        self._sum = 0
        self._known = True
        self._passes: list[None] = []
        self._has_batch = False  # a loader has given one for this micro step
        self._size: int | None = None  # of the call that counts if a pass follows
        self._is_freed = False  # the last pass did not retain its graph

    def count(self, module: Any, args: Any, kwargs: Any) -> None:
        """The forward tap calls this while `waiting` holds an element: this call may be the one that counts."""
        torch = sys.modules["torch"]
        if not torch.is_grad_enabled() or get_ident() != self.thread:
            return  # an evaluation, or a call on another thread
        if torch._C._get_tracing_state() is not None:
            return  # while tracing, reading a size would add an operation to the graph
        with torch._C.DisableTorchFunction():  # a mode or a subclass of tensors is code of the job's
            size = _first_size((args, kwargs), torch.Tensor, _MAX_DEPTH, [_MOST])
        if module.training:
            self.waiting.pop()
        self._size = size

    def batch_taken(self) -> None:
        """A loader has given a batch, on any thread."""
        if not self._has_batch and not self._passes and get_ident() == self.thread:
            self._has_batch = True
            self.waiting[:] = [None]

    @property
    def is_in_pass(self) -> bool:
        """Whether a pass that the engine's tap has seen begin is under way, on any thread."""
        return bool(self._passes)

    def pass_begins(self, retains_graph: Any = None) -> None:
        """The engine's tap calls this; forwards recomputed inside a pass do not begin a micro step.

        retains_graph: as the job says it.
        """
        if not self._passes:
            self._add(self._size)
            self._is_freed = retains_graph is False
        self._passes.append(None)
        self.waiting.clear()

    def _add(self, size: int | None) -> None:
        """A pass begins after a call of this size, or with no call since the last pass: then it goes through the graph
        of that one again, or through calls that were not counted, as where micro batches are pipelined."""
        if size is not None:
            self._sum += size
            self._known = self._known and size > 0
        elif self._is_freed and get_ident() == self.thread:
            self._known = False

    def pass_ends(self) -> bool:
        """Whether it was an outermost one."""
        self._passes.pop()
        if not self._passes:
            self._wait()
        return not self._passes

    def take(self, thread: int) -> int:
        """Samples since the last boundary, 0 if unknown.  Called at a boundary, on the training thread."""
        found = self._sum if self._known else 0
        self._sum, self._known, self._is_freed, self.thread = 0, True, False, thread
        self._wait()
        return found

    def _wait(self) -> None:
        self._size, self._has_batch = None, False
        self.waiting[:] = [None]


def _first_size(value: Any, tensor_type: type, depth: int, left: list[int]) -> int:
    """The first dimension of the first tensor that has one, 0 if there is none.  left: how many values to look at."""
    left[0] -= 1
    if isinstance(value, tensor_type):
        return _size_of(value)
    if depth and isinstance(value, _CONTAINERS):
        if hasattr(type(value), "batch_sizes"):
            return _UNKNOWN
        for each in islice(value.values() if isinstance(value, dict) else value, _MOST_EACH):
            size = _first_size(each, tensor_type, depth - 1, left)
            if size or left[0] <= 0:
                return size
    return 0


def _size_of(tensor: Any) -> int:
    try:
        size = tensor.shape[0] if tensor.shape else 0
    except Exception as error:  # a strided NestedTensor has no shape, and that of a subclass is code of the job's
        if raised_by_handler(error):
            raise
        return _UNKNOWN
    return size if type(size) is int else 0
