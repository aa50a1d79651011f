"""How large an operation's tensors are and what they are called, without a format or a trace in the job.

Asked by the kernels of the tap of collectives.  The one invariant: no torch-function mode or subclass of
the job's own sees us look at a tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_KINDS = 4096  # (dtype, shape) remembered; a job with ever new shapes starts over


class Tensors:
    """size_of() on any thread; 300 ns for one plain tensor of a known shape."""

    def __init__(self, string: Callable[[str], int], torch: Any) -> None:
        self._string = string
        self._plain = torch.Tensor
        self._sparse = torch.sparse_coo
        self._unseen = torch._C.DisableTorchFunction
        # before torch 2.2 it cannot be asked whether a mode is on
        self._modes: Callable[[], int] = getattr(torch._C, "_len_torch_function_stack", lambda: 1)
        self._known: dict[Any, int] = {}

    def size_of(self, tensors: list[Any]) -> tuple[Any, int]:
        """(bytes, log id of "dtype shape" of the first and how many more there are); bytes may be symbolic."""
        if len(tensors) == 1 and type(tensors[0]) is self._plain and not self._modes():
            return self._size_of(tensors)
        with self._unseen():
            return self._size_of(tensors) if tensors else (0, 0)

    def _size_of(self, tensors: list[Any]) -> tuple[Any, int]:
        first = tensors[0]
        try:
            size = first.nbytes if len(tensors) == 1 else sum(tensor.nbytes for tensor in tensors)
        except RuntimeError:  # nbytes is only there for dense ones
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
