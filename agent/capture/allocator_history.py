"""The history of torch's caching allocators on CUDA: switched on and off, and what it holds as one compressed text.

Used by histories.py.  Invariant: it never meets one that the job has begun; where the job begins one, ours ends first.
"""

from __future__ import annotations

import json
import sys
import time
import zlib
from _thread import RLock, get_ident
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from ..torch_state import cuda_is_in_use, cuda_may_be_asked
from .guard import Guard

_BEGINS = "_cuda_record_memory_history", "_cuda_record_memory_history_legacy"
_AT_ONCE, _REST_S = 50, 0.001  # a part of some 0.5 ms, after which other threads get the GIL


def why_none() -> str:
    """Why no history can be recorded here; "" if nothing speaks against it."""
    if not cuda_is_in_use():
        return "it does not use CUDA"
    if not cuda_may_be_asked():
        return "its devices are left alone"
    try:
        own = sys.modules["torch"]._C._cuda_isHistoryEnabled()
    except (RuntimeError, AttributeError) as error:
        return f"its allocator keeps no history: {str(error).splitlines()[0]}"
    return "it records the history of its allocator itself" if own else ""


class AllocatorHistory:
    """start() at a boundary, then snapshot(), and stop() on any thread, as often as one likes.

    entries: the last so many are kept, of each device; stacks: Python's, of each allocation.
    """

    def __init__(self, entries: int, stacks: bool, on_job: Callable[[], None]) -> None:
        self._entries, self._context = entries, "alloc" if stacks else None
        self.guard = Guard(on_job)
        self._lock, self._is_on = RLock(), False  # a signal handler of the job may come in the midst of stop()

    def start(self) -> None:
        """On the thread that would begin one of the job's own: torch notes its record_function() in histories."""
        core = sys.modules["torch"]._C
        with self._lock:
            _record()("all", context=self._context, stacks="python", max_entries=self._entries)
            self._is_on = True
            self.guard.install([(core, name) for name in _BEGINS if hasattr(core, name)])

    def snapshot(self) -> dict[str, Any]:
        """As torch makes it, for its viewer.  It keeps the GIL for some 2 µs an entry."""
        torch = vars(sys.modules["torch"])
        instead = torch.setdefault("_inductor", _NoInductor())
        try:
            found: dict[str, Any] = sys.modules["torch.cuda.memory"]._snapshot()
            return found
        finally:
            if type(instead) is _NoInductor and torch.get("_inductor") is instead:
                del torch["_inductor"]

    def stop(self) -> None:
        """What the job begins after this is its own."""
        with self._lock:
            is_on, self._is_on = self._is_on, False
            if is_on:
                self.guard.remove()
                _record()(None)


class _NoInductor:
    """Stands in its place in a job that has not imported it: to name frames torch would do so, which takes seconds.

    To other threads it is what it stands for.
    """

    def __init__(self) -> None:
        self._thread = get_ident()

    def __getattr__(self, name: str) -> Any:
        if get_ident() == self._thread:
            raise AttributeError(name)
        return getattr(import_module("torch._inductor"), name)


def _record() -> Any:
    return sys.modules["torch.cuda.memory"]._record_memory_history


def packed(snapshot: dict[str, Any], is_unwanted: Callable[[], bool] = bool) -> bytes:
    """Lines of JSON, compressed, and the snapshot is used up: a part of a device's entries, or of segments, in each;
    in place of frames the number of the stack, which the last line has, with the frames that these consist of.
    Nothing once it is unwanted."""
    stacks, packer, parts = _Stacks(), zlib.compressobj(1), list[bytes]()
    for line in _lines(snapshot, stacks):
        parts.append(packer.compress(json.dumps(line, separators=(",", ":"), default=str).encode() + b"\n"))
        time.sleep(_REST_S)
        if is_unwanted():
            return b""
    return b"".join([*parts, packer.flush()])


def _lines(snapshot: dict[str, Any], stacks: _Stacks) -> Iterator[list[Any]]:
    for device, entries in enumerate(snapshot.pop("device_traces")):
        for part in _parts(entries):
            stacks.number(part)
            yield ["entries", device, part]
    for part in _parts(snapshot.pop("segments")):
        for segment in part:
            stacks.number(segment["blocks"])
        stacks.number(part)
        yield ["segments", part]
    yield ["rest", snapshot]
    yield ["stacks", stacks.frames, stacks.stacks]


def _parts(things: list[Any]) -> Iterator[list[Any]]:
    for first in range(0, len(things), _AT_ONCE):
        yield things[first : first + _AT_ONCE]


class _Stacks:
    """Each frame and each stack once.  In a snapshot, equal frames are one object as a rule."""

    def __init__(self) -> None:
        self.frames: list[list[Any]] = []
        self.stacks: list[list[int]] = []
        self._frames: dict[int, int] = {}  # id of a frame -> number
        self._lists: dict[int, int] = {}  # id of a list of them -> number of the stack
        self._stacks: dict[tuple[int, ...], int] = {}
        self._all: list[Any] = []  # these, or another one could get the id

    def number(self, things: list[dict[str, Any]]) -> None:
        for each in things:
            if (frames := each.get("frames")) is not None:
                number = self._lists.get(id(frames))
                each["frames"] = self._stack(frames) if number is None else number

    def _stack(self, frames: list[dict[str, Any]]) -> int:
        self._all.append(frames)
        key = tuple([self._frames.get(id(each)) or self._frame(each) for each in frames])
        number = self._stacks.get(key)
        if number is None:
            number = self._stacks[key] = len(self.stacks)
            self.stacks.append([each - 1 for each in key])
        self._lists[id(frames)] = number
        return number

    def _frame(self, frame: dict[str, Any]) -> int:
        """From 1 on."""
        self._all.append(frame)
        self.frames.append([frame["name"], frame["filename"], frame["line"]])
        self._frames[id(frame)] = len(self.frames)
        return len(self.frames)
