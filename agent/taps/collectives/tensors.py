"""The size of an operation's tensors and a name for them, without formatting text each time or leaving a trace.

The kernels of the tap of collectives call this.
Invariant: no torch-function mode or tensor subclass of the job notices that we look at a tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_KINDS = 4096  # (dtype, shape) pairs remembered; a job that keeps making new shapes makes the cache start over


class Tensors:
    """size_of() runs on any thread and takes 300 ns for one plain tensor of a known shape."""

    def __init__(self, string: Callable[[str], int], torch: Any) -> None:
        self._string = string
        self._plain = torch.Tensor
        self._sparse = torch.sparse_coo
        self._unseen = torch._C.DisableTorchFunction
        # before torch 2.2 there is no way to ask whether a mode is on
        self._modes: Callable[[], int] = getattr(torch._C, "_len_torch_function_stack", lambda: 1)
        self._known: dict[Any, int] = {}

    def size_of(self, tensors: list[Any]) -> tuple[Any, int]:
        """(bytes, log id of "dtype shape" of the first tensor with the number of others); bytes may be symbolic."""
        if len(tensors) == 1 and type(tensors[0]) is self._plain and not self._modes():
            return self._size_of(tensors)
        with self._unseen():
            return self._size_of(tensors) if tensors else (0, 0)

    def _size_of(self, tensors: list[Any]) -> tuple[Any, int]:
        first = tensors[0]
        try:
            size = first.nbytes if len(tensors) == 1 else sum(tensor.nbytes for tensor in tensors)
        except RuntimeError:  # only dense tensors have nbytes
            size = sum(self._sparse_bytes(tensor) for tensor in tensors)
        if type(size) is not int:
            return size, 0
        key = (first.dtype, first.shape, len(tensors))
        return size, self._known.get(key) or self._name(key)

    def _name(self, key: tuple[Any, Any, int]) -> int:
        dtype, shape, count = key
        if len(self._known) >= _KINDS:
            self._known.clear()
        more = f" +{count - 1}" if count > 1 else ""
        known = self._known[key] = self._string(f"{str(dtype).removeprefix('torch.')} {list(shape)}{more}")
        return known

    def _sparse_bytes(self, tensor: Any) -> int:
        if tensor.layout is not self._sparse:
            return 0
        return int(tensor._indices().nbytes + tensor._values().nbytes)
