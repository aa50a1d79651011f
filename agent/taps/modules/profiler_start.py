"""Gives torch its own code of a module call back for the moment in which a profiler of torch's begins.

The first one that records stacks remembers this code, by its address and for the rest of the process: it tells by it
which frames are calls of modules.  Used by forward.py.  Invariant: the job's call is made whatever ours did around it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from ...noop import noop


class ProfilerStart:
    """put(ours) puts our code into place, if it is wanted there, or torch's own."""

    def __init__(self, put: Callable[[bool], None]) -> None:
        self._names: dict[str, Any] = vars(sys.modules["torch.autograd.profiler"])
        self._original = self._names.get("_enable_profiler")
        self._around: Any = _around(self._original, put)

    @property
    def runs(self) -> bool:
        """Whether a profiler of torch's is on."""
        return bool(self._names.get("_is_profiler_enabled"))

    def install(self) -> None:
        if self._original is not None:
            self._names["_enable_profiler"] = self._around

    def remove(self) -> None:
        if self._names.get("_enable_profiler") is self._around:
            self._names["_enable_profiler"] = self._original

    def release(self) -> None:
        """Refer to nothing that refers back."""
        self._around = noop


def _around(original: Any, put: Callable[[bool], None]) -> Any:
    def _enable_profiler(*args: Any, **kwargs: Any) -> Any:
        put(False)
        try:
            return original(*args, **kwargs)
        finally:
            put(True)

    return _enable_profiler
