"""Reading and writing the variables of a frame of the job.

Up to 3.12 a function's `f_locals` is a dict that the frame keeps: each access fills it from the variables, and the
interpreter writes it back after each trace event.  If the job has called locals(), it has that dict, too, and may have
changed it.  Invariant: no copy made here stays filled, because it would keep every object in it alive; a dict of the
job's has its own values again; neither is done while the interpreter may still write the copy back.
"""

from __future__ import annotations

import sys
from types import FrameType
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
        self._made: dict[int, dict[str, Any]] = {}
        self._jobs: dict[int, _Before] = {}  # of a dict that the job has
        self._orphans: dict[int, tuple[dict[str, Any], Any]] = {}  # those of frames that have returned

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

    def take(self, frame: FrameType) -> None:
        """Fill the frame's dict, which is to be emptied.  To fill it is the last thing, at which no thread switches."""
        if COPIES:
            made, key = self._made if has_slots(frame) else {}, id(frame)
            made[key] = frame.f_locals

    def leave(self, frame: FrameType) -> bool:
        """Do not empty that of this frame; whether there was one."""
        return self._made.pop(id(frame), None) is not None

    def dies(self, frame: FrameType) -> None:
        """Likewise fill it, of a frame that returns: it goes with the frame, unless it is the job's."""
        self._made.pop(id(frame), None)
        before = self._jobs.pop(id(frame), None)
        if COPIES:
            orphans, key = self._orphans if before is not None else {}, id(before)
            orphans[key] = frame.f_locals, before

    def empty(self) -> None:
        while self._orphans:
            _restore(*self._orphans.popitem()[1])
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

    It is found by its place, right after those of the globals and the builtins.
    """
    import ctypes

    try:
        memory = Memory()
    except OSError:  # no descriptor is left
        return None
    try:
        start = id(frame)
        if sys.version_info >= (3, 11):
            start = memory.words(start, _INNER + 1)[_INNER]
        words, around = memory.words(start, _FRAME_WORDS), {id(frame.f_globals), id(frame.f_builtins)}
        at = next((at for at in range(len(words) - 2) if {words[at], words[at + 1]} == around), None)
        if at is None or not words[at + 2] or memory.words(words[at + 2], 2)[1:] != (id(dict),):
            return None
        slot: Any = ctypes.py_object.from_address(start + WORD * (at + 2))
        kept: dict[str, Any] = slot.value
        return kept
    finally:
        memory.close()
