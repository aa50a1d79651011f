"""The source of an operation, found from the Python frames around the call.

The kernels of the tap of collectives look it up for each row.
Invariant: frames are read and never changed; arguments are read only of a function that autograd itself calls (it may
be a comm hook), and only once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache, partial
from types import CodeType, FrameType
from typing import Any

_getframe = sys._getframe
_PLUMBING, _AUTOGRAD = 0, -1  # code that issues on behalf of its caller; anything that C++ issues in a backward
_FILES = 4096  # files remembered, and functions that autograd called

# prefix of a file's path below torch's folder -> its source; the first match counts
_SOURCE_OF_PREFIX: tuple[tuple[str, str | int], ...] = (
    ("distributed/distributed_c10d.py", _PLUMBING),
    ("distributed/c10d_logger.py", _PLUMBING),
    ("distributed/utils.py", _PLUMBING),
    ("utils/_contextlib.py", _PLUMBING),
    ("autograd/", _AUTOGRAD),
    ("_tensor.py", _AUTOGRAD),
    ("_ops.py", "functional"),  # a C++ operator called by its name, as compiled code does
    ("distributed/_functional_collectives", "functional"),
    ("distributed/nn/", "functional"),
    ("distributed/tensor/", "functional"),
    ("nn/parallel/", "ddp"),
    ("nn/modules/_functions.py", "sync_batch_norm"),
    ("distributed/algorithms/ddp_comm_hooks/", "ddp"),
    ("distributed/algorithms/model_averaging/", "model_averaging"),
    ("distributed/fsdp/", "fsdp"),
    ("distributed/_composable/fsdp/", "fsdp"),
    ("distributed/algorithms/_comm_hooks/", "fsdp"),
    ("distributed/optim/", "zero"),
)
_REDUCER_OPERATIONS = ("allreduce_", "allreduce_coalesced_", "broadcast_")  # whatever else C++ issues is functional


class Sources:
    """of() runs on any thread and takes about 300 ns."""

    def __init__(self, string: Callable[[str], int], torch: Any) -> None:
        self._string = string
        folder = str(torch.__file__).rpartition("/")[0] + "/"
        self._of_file = lru_cache(_FILES)(partial(_source_of, folder, string))
        self._bucket: Any = torch._C._distributed_c10d.GradBucket
        self._called: dict[tuple[str, int], int] = {}  # file and line of functions that autograd called -> source
        self._user = string("user")

    def of_native(self, operation: str) -> int:
        """Log id of the source of this operation where no Python frame stands between autograd and the kernel."""
        return self._string("ddp" if operation in _REDUCER_OPERATIONS else "functional")

    def of(self, native: int) -> int:
        """Log id of what called the caller's caller; native: of_native() of the operation."""
        frame: Any = _getframe(2).f_back
        of_file, user = self._of_file, self._user
        while frame is not None:
            source = of_file(frame.f_code.co_filename)
            if source == user:
                return self._of_function(frame)
            if source != _PLUMBING:
                return source if source > 0 else native
            frame = frame.f_back
        return native  # a thread of autograd without any Python frame

    def _of_function(self, frame: FrameType) -> int:
        """The source of a user's function: DDP if autograd itself called it with a bucket (a comm hook)."""
        above = frame.f_back
        if above is not None and self._of_file(above.f_code.co_filename) != _AUTOGRAD:
            return self._user
        code: CodeType = frame.f_code
        key = (code.co_filename, code.co_firstlineno)
        known = self._called.get(key)
        if known is None:
            if len(self._called) >= _FILES:
                self._called.clear()
            arguments = [frame.f_locals.get(name) for name in code.co_varnames[: code.co_argcount]]
            hook = any(isinstance(each, self._bucket) for each in arguments)
            known = self._called[key] = self._string("ddp") if hook else self._user
        return known


def _source_of(folder: str, string: Callable[[str], int], file: str) -> int:
    """Log id of the source that a file tells, or _PLUMBING or _AUTOGRAD."""
    if not file.startswith(folder):
        return _PLUMBING if file.endswith("/contextlib.py") else string("user")
    path = file.removeprefix(folder)
    for prefix, source in _SOURCE_OF_PREFIX:
        if path.startswith(prefix):
            return string(source) if isinstance(source, str) else source
    top, _, inner = path.partition("/")
    return string(inner.split("/")[0].removesuffix(".py").lstrip("_") if top == "distributed" else "torch")
