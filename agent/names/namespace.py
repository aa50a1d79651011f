"""The names that a snippet sees, and where those go that it binds anew.

Made by evaluation.py from the frames of the training thread, as a debugger would show them.  The one invariant: only
a variable of the user's whose object the snippet replaced is written, where it came from and nowhere else; the `i`
of a library's loop is not.
"""

from __future__ import annotations

import os
import sys
from types import CodeType, FrameType, GetSetDescriptorType, ModuleType
from typing import Any

from ..boundary.back_edge_trace import BackEdgeTrace, in_a_trace
from ..boundary.driving_loop import is_mark
from ..inspect import frame_locals
from ..inspect.exclusive import exclusively

_LIBRARIES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_NOT_FILES = ("<frozen ", "<probe>")
_HOLDERS = 3  # of a replaced object, that are named
_IMMUTABLE = (int, float, str, bytes, bool, tuple, type(None))


class Namespace:
    """`names` is what the snippet runs in: locals of libraries between the user's frames, the snippets' own names
    of before, globals of __main__, then globals and locals of the user's frames, innermost last."""

    def __init__(self, frame: FrameType | None, own: dict[str, Any], running: bool) -> None:
        """`running`: the frames belong to a thread that goes on meanwhile; then they are not kept."""
        self.names: dict[str, Any] = {}
        self._own, self._own_before = own, dict(own)  # another snippet may change it meanwhile
        self._origins: dict[str, FrameType | dict[str, Any]] = {}
        self._before: dict[str, Any] = {}
        read = _read_running if running else frame_locals.read
        self._frames, libraries = _divided(frame)
        self._lent: dict[str, Any] = {}
        for frame in reversed(libraries):
            self._lent.update(read(frame))
        self.names.update(self._lent)
        self.names.update(self._own_before)
        self._add(vars(sys.modules["__main__"]))
        for frame in reversed(self._frames):
            self._add(frame.f_globals)
            if frame_locals.has_slots(frame) or frame.f_locals is not frame.f_globals:
                self._add(read(frame), frame)
        for names in (self.names, self._before, self._origins):
            names.pop("__builtins__", None)  # exec puts in its own
        if running:
            _empty_running([*self._frames, *libraries])
            self._frames.clear()

    def _add(self, values: dict[str, Any], frame: FrameType | None = None) -> None:
        # One C call each: another thread may bind a new global at any time.
        self.names.update(values)
        self._before.update(values)
        self._origins.update(dict.fromkeys(values, values if frame is None else frame))

    def write(self, keep: frozenset[str]) -> list[str]:
        """Bind what the snippet replaced, except the names to `keep` for it; what was bound, in words."""
        changed = {
            name: self.names[name]
            for name, before in self._before.items()
            if name in self.names and self.names[name] is not before and name not in keep
        }
        for frame in self._frames:
            mine = {name: value for name, value in changed.items() if self._origins[name] is frame}
            if mine:
                frame_locals.write(frame, mine)
        for name, value in changed.items():
            origin = self._origins[name]
            if isinstance(origin, dict):
                origin[name] = value
        return [f"{self._place(name)}{self._still_held(name)}" for name in changed]

    def release(self, codes: list[CodeType]) -> None:
        """Keep the snippet's own names; of the job's only those which functions of the snippet refer to."""
        jobs = {name for name, value in self._lent.items() if self.names.get(name, self) is value}
        jobs -= self._own_before.keys()
        jobs |= self._origins.keys()
        for name in self._own_before.keys() - self.names.keys() - jobs:
            self._own.pop(name, None)
        mine = {name: self.names[name] for name in self.names.keys() - jobs - {"__builtins__"}}
        self._own.update({name: value for name, value in mine.items() if self._own_before.get(name, self) is not value})
        referred = {name for code in codes for name in _names_in_functions(code)}
        for name in jobs - referred:
            self.names.pop(name, None)
        self._lent.clear()
        self._own_before.clear()
        self._before.clear()
        self._origins.clear()
        self._frames.clear()

    def _place(self, name: str) -> str:
        origin = self._origins[name]
        if isinstance(origin, dict):
            return f"{origin.get('__name__', '?')}.{name}"
        return f"{origin.f_code.co_name}().{name}"

    def _still_held(self, name: str) -> str:
        """`; trainer.model still holds the old object`, if another variable does."""
        old = self._before[name]
        if type(old) in _IMMUTABLE:
            return ""
        holders: list[str] = []
        for other, value in self._before.items():
            if other != name and not issubclass(type(value), (ModuleType, type)):
                if value is old:
                    holders.append(other)
                else:
                    holders += [f"{other}.{attribute}" for attribute, held in attributes(value) if held is old]
        if not holders:
            return ""
        return f"; {', '.join(holders[:_HOLDERS])} still {'holds' if len(holders) == 1 else 'hold'} the old object"


def _divided(frame: FrameType | None) -> tuple[list[FrameType], list[FrameType]]:
    """(the user's frames, those of libraries between them), both from this one outward.

    A job that is an installed program has no code of the user's: then that of packages counts as such.
    """
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    kinds = [whose(frame) for frame in frames]
    for kind in (USERS, PACKAGES):
        if kind in kinds:
            first, last = kinds.index(kind), len(kinds) - kinds[::-1].index(kind)
            users = [frame for frame, its in zip(frames, kinds, strict=True) if its == kind]
            return users, [frame for frame in frames[first:last] if frame not in users]
    return [], []


USERS, PACKAGES, _OTHERS = range(3)


def whose(frame: FrameType) -> int:
    """Whose code it runs: the user's, an installed package's, or torch's, Python's or ours."""
    file = frame.f_code.co_filename
    torch = getattr(sys.modules.get("torch"), "__file__", None) or os.__file__
    if any(library in file for library in _LIBRARIES):
        return _OTHERS if file.startswith(os.path.dirname(torch) + os.sep) else PACKAGES
    roots = (os.path.dirname(os.__file__) + os.sep, os.path.dirname(torch) + os.sep)
    return _OTHERS if file.startswith((*roots, *_NOT_FILES)) else USERS


def _read_running(frame: FrameType) -> dict[str, Any]:
    return dict(frame.f_locals)


def attributes(value: Any) -> list[tuple[str, Any]]:
    """What a plain instance holds, and the submodules of an nn.Module; no property or method of it runs."""
    for kind in type(value).__mro__:
        if "__dict__" in vars(kind) and type(vars(kind)["__dict__"]) is not GetSetDescriptorType:
            return []  # a proxy's own idea of it
    try:
        held = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return []
    modules = held.get("_modules")
    return [*held.items(), *(modules.items() if type(modules) is dict else ())]


def _names_in_functions(code: CodeType) -> set[str]:
    """Names that code inside this code refers to: its functions may outlive the snippet."""
    names: set[str] = set()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names.update(constant.co_names)
            names |= _names_in_functions(constant)
    return names


def _empty_running(frames: list[FrameType]) -> None:
    """What reading has left in frames of another thread; not while that is in a trace function."""
    quiet = [
        frame
        for frame in frames
        if frame.f_trace is None or type(frame.f_trace) is BackEdgeTrace or is_mark(frame.f_trace)
    ]

    def change() -> None:
        for frame in quiet:
            if frame_locals.has_slots(frame):
                frame_locals.empty({0: frame.f_locals})

    if frame_locals.COPIES:
        exclusively(change, in_a_trace)
