"""Which variable of the job holds a thing: how what has no name of its own gets one.

Called on the thread that uses the thing, once a thing; it takes some 0.1 ms.  The one invariant: the job's variables
are read and nothing else, and no code of the job runs.  Up to 3.12 reading a frame's variables refreshes the dict that
locals() has given out, and a trace function's are written back: frames where that could be are left alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from ..inspect import frame_locals
from .namespace import PACKAGES, USERS, attributes, whose

_FRAMES = 64  # looked at, from the innermost
_ITEMS = 16  # of a list or dict
OWN_NAMES = {"self", "cls"}  # of a loader's own methods, or of its iterator's
_GIVE_LOCALS = {"locals", "vars", "eval", "exec"}

Suits = Callable[[Any], bool]


def readable() -> bool:
    """Whether variables may be read on this thread now: not in a debugger's session, nor in an eval at a turn."""
    return not frame_locals.COPIES or sys.gettrace() is None


def holder(frame: FrameType | None, *suits: Suits) -> str | None:
    """The variable, attribute or item that suits, first by the first test; the user's frames come before packages'."""
    frames = [(whose(each), each) for each in outward(frame)]
    ordered = [each for kind in (USERS, PACKAGES) for its, each in frames if its == kind]
    spaces = [variables(each) for each in ordered]
    spaces += {id(each.f_globals): each.f_globals for each in ordered}.values()
    for suit in suits:
        for space in spaces:
            name = _in(space, suit)
            if name is not None:
                return name
    return None


def outward(frame: FrameType | None) -> Iterator[FrameType]:
    for _ in range(_FRAMES):
        if frame is None:
            return
        yield frame
        frame = frame.f_back


def variables(frame: FrameType) -> dict[str, Any]:
    if not frame_locals.has_slots(frame):
        return frame.f_locals
    if frame_locals.COPIES and not _GIVE_LOCALS.isdisjoint(frame.f_code.co_names):
        return {}
    return frame_locals.read(frame)


def _in(space: dict[str, Any], suit: Suits) -> str | None:
    """Variables first, then one level deep what they hold."""
    variables = [(name, value) for name, value in list(space.items()) if not name.startswith("__")]
    for name, value in variables:
        if name not in OWN_NAMES and suit(value):
            return name
    for name, value in variables:
        for part, held in parts_of(value):
            if suit(held):
                return f"{name}{part}"
    return None


def parts_of(value: Any) -> Iterator[tuple[str, Any]]:
    kind = type(value)
    if kind is dict:
        if len(value) <= _ITEMS:
            yield from ((f"[{key!r}]", held) for key, held in list(value.items()) if type(key) in (str, int))
    elif kind in (list, tuple):
        if len(value) <= _ITEMS:
            yield from ((f"[{place}]", held) for place, held in enumerate(value))
    elif kind.__module__ != "builtins":
        yield from ((f".{name}", held) for name, held in attributes(value))
