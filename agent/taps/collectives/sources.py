"""Who issued an operation, told by the Python frames around it.

Asked by the kernels of the tap of collectives for each row.  The one invariant: frames are looked at, never changed,
and only a function that autograd calls itself (a comm hook, perhaps) is asked for its arguments, once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

_getframe = sys._getframe
_PLUMBING, _AUTOGRAD = 0, -1  # what issues for others; whatever C++ does in a backward
_FILES = 4096  # remembered; a job that makes ever new files of code starts over

# the beginning of a file's path below the folder of torch -> who that is; the first that fits
_PARTS: tuple[tuple[str, str | int], ...] = (
    ("distributed/distributed_c10d.py", _PLUMBING),
    ("distributed/c10d_logger.py", _PLUMBING),
    ("distributed/utils.py", _PLUMBING),
    ("utils/_contextlib.py", _PLUMBING),
    ("autograd/", _AUTOGRAD),
    ("_tensor.py", _AUTOGRAD),
    ("_ops.py", "functional"),  # an operator of C++ that was called by its name, as compiled code does it
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
_OF_REDUCER = ("allreduce_", "allreduce_coalesced_", "broadcast_")  # other ones that C++ issues are functional


class Sources:
    """of() on any thread; about 300 ns."""

    def __init__(self, string: Callable[[str], int], torch: Any) -> None:
        self._string = string
        self._folder = str(torch.__file__).rpartition("/")[0] + "/"
        self._bucket: Any = torch._C._distributed_c10d.GradBucket
        self._known: dict[str, int] = {}
        self._called: dict[tuple[str, int], int] = {}  # functions that autograd called
        self._user = string("user")

    def of_native(self, operation: str) -> int:
        """Log id of who issues this operation where no Python stands between autograd and us."""
        return self._string("ddp" if operation in _OF_REDUCER else "functional")

    def of(self, native: int) -> int:
        """Log id of who called the caller's caller; native: of_native of its operation."""
        frame: Any = _getframe(2).f_back
        of_file, user = self._of_file, self._user
        while frame is not None:
            source = of_file(frame.f_code.co_filename)
            if source == user:
                return self._of_function(frame)
            if source != _PLUMBING:
                return source if source > 0 else native
            frame = frame.f_back
        return native  # a thread of autograd, where Python has not been

    def _of_file(self, file: str) -> int:
        known = self._known.get(file)
        if known is None:
            if len(self._known) >= _FILES:
                self._known.clear()
            known = self._known[file] = self._who(file)
        return known

    def _who(self, file: str) -> int:
        if not file.startswith(self._folder):
            return _PLUMBING if file.endswith("/contextlib.py") else self._user
        path = file.removeprefix(self._folder)
        for beginning, who in _PARTS:
            if path.startswith(beginning):
                return self._string(who) if isinstance(who, str) else who
        folder, _, inner = path.partition("/")
        return self._string(inner.split("/")[0].removesuffix(".py").lstrip("_") if folder == "distributed" else "torch")

    def _of_function(self, frame: FrameType) -> int:
        """The user's own function: a comm hook of DDP where autograd itself has called it with a bucket."""
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
