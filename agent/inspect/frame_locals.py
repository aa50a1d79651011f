"""Reading and writing the variables of a frame of the job.

Up to 3.12 a function's `f_locals` is a dict that the frame keeps: each access fills it from the variables, and the
interpreter writes it back after each trace event.  If the job has called locals(), it has that dict, too, and may have
changed it.  Invariant: no copy made here stays filled, because it would keep every object in it alive; a dict of the
job's has its own values again; neither is done while the interpreter may still write the copy back.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from types import CodeType, FrameType
from typing import Any

from .parked_threads import WORD, Memory

COPIES = sys.version_info < (3, 13)  # since 3.13 f_locals writes through
_OPTIMIZED = 0x1  # code flag: locals are slots, so f_locals is not the namespace itself
_FRAME_WORDS = 16
_Before = tuple[tuple[str, ...], dict[str, Any]]  # the frame's variables, and what those in its dict were
_INNER = 3  # since 3.11 this word of a frame object is the address of what the interpreter itself uses


def has_slots(frame: FrameType) -> bool:
    """False for modules and class bodies, whose f_locals is the namespace itself."""
    return bool(frame.f_code.co_flags & _OPTIMIZED)


def calls_of_locals(code: CodeType) -> Iterator[int]:
    """The offsets at which locals() or vars() is loaded."""
    from opcode import opmap

    bits = 1 if sys.version_info >= (3, 11) else 0  # the lowest one is no part of the name's number
    wanted = {number << bits & 0xFF for number, name in enumerate(code.co_names) if name in ("locals", "vars")}
    for at in range(0, len(code.co_code) if wanted else 0, 2):
        if code.co_code[at] == opmap["LOAD_GLOBAL"] and code.co_code[at + 1] & ~bits in wanted:
            yield at


def read(frame: FrameType) -> dict[str, Any]:
    """The variables bound at this moment."""
    copies = Copies()
    copies.expect(frame)
    values = dict(frame.f_locals)
    copies.take(frame)
    copies.empty()
    return values


def write(frame: FrameType, values: dict[str, Any]) -> None:
    """Bind these variables, which the frame must have, and leave all others as they are at this moment."""
    copies = Copies()
    copies.expect(frame)
    variables = frame.f_locals  # filled now, so that changes since read() are not undone
    variables.update(values)
    if COPIES and has_slots(frame):
        import ctypes

        python = ctypes.PyDLL("", handle=ctypes.pythonapi._handle)  # the job may have declared pythonapi's functions
        python.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
        del variables
        copies.take(frame)
        copies.empty()


class Copies:
    """The dicts that are left in frames, by the frame's id.  On 3.13 and later there are none."""

    def __init__(self) -> None:
        self._made: dict[object, dict[str, Any]] = {}
        self._jobs: dict[object, _Before] = {}  # of a dict that the job has

    def expect(self, frame: FrameType) -> bool:
        """Call it before anything refreshes this frame's dict.  True if the job has that dict."""
        if not COPIES or not has_slots(frame) or id(frame) in self._jobs:
            return id(frame) in self._jobs
        held = _kept(frame)
        if held is None or sys.getrefcount(held) <= 3:  # references: the frame's, ours and the argument's
            return False
        code = frame.f_code
        names = (*code.co_varnames, *code.co_cellvars, *code.co_freevars)
        self._jobs[id(frame)] = names, {name: held[name] for name in names if name in held}
        return True

    def place(self, frame: FrameType, dies: bool = False) -> tuple[dict[Any, Any], object]:
        """Where to put the frame's dict once it is filled.  dies: it goes with the frame, unless it is the job's."""
        key: object = id(frame)
        if dies:
            self._made.pop(key, None)
            before, key = self._jobs.pop(key, None), object()
            if before is None:
                return {}, key
            self._jobs[key] = before
        return self._made if has_slots(frame) else {}, key

    def take(self, frame: FrameType) -> None:
        """Fill the frame's dict, which is to be emptied."""
        if COPIES:
            made, key = self.place(frame)
            made[key] = frame.f_locals

    def leave(self, frame: FrameType) -> bool:
        """Do not empty that of this frame; whether there was one."""
        return self._made.pop(id(frame), None) is not None

    def empty(self) -> None:
        while self._made:
            key, copy = self._made.popitem()
            if key in self._jobs:
                _restore(copy, self._jobs.pop(key))
            elif sys.getrefcount(copy) == 3:  # as above; one that is held elsewhere was returned by locals() since
                copy.clear()


def _restore(copy: dict[str, Any], before: _Before) -> None:
    """What the job has put under other names since is left."""
    names, values = before
    for name in names:
        if name in values:
            copy[name] = values[name]
        else:
            copy.pop(name, None)


def _kept(frame: FrameType) -> dict[str, Any] | None:
    """The dict that the frame keeps, as it is: asking the frame for it would refresh it.

    The GIL is kept on the way: a frame of another thread that returns leaves its place to the next.
    """
    from ctypes import c_size_t, py_object

    if not _slots:
        _slots.append(_find_slot(sys._getframe()))
    if _slots[0] < 0:
        return None
    slot = _start(frame) + _slots[0]
    address = c_size_t.from_address(slot).value
    if not address or c_size_t.from_address(address + WORD).value != id(dict):
        return None
    kept: Any = py_object.from_address(slot)
    found: dict[str, Any] = kept.value
    return found


def _start(frame: FrameType) -> int:
    from ctypes import c_size_t

    return id(frame) if sys.version_info < (3, 11) else int(c_size_t.from_address(id(frame) + WORD * _INNER).value)


def _find_slot(frame: FrameType) -> int:
    """How far the dict's place is from the start: right after those of the globals and the builtins; -1 if it is not.

    frame: one of this thread's that goes on.
    """
    with suppress(OSError):  # no descriptor is left
        with closing(Memory()) as memory:
            words, around = memory.words(_start(frame), _FRAME_WORDS), {id(frame.f_globals), id(frame.f_builtins)}
        for at in range(len(words) - 2):
            if {words[at], words[at + 1]} == around:
                return WORD * (at + 2)
    return -1


_slots: list[int] = []  # what _find_slot() has found
