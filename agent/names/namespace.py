"""The names that a snippet sees, and the write-back of those that it rebinds.

evaluation.py makes a Namespace from the frames of the training thread, as a debugger would show them.  Invariant: only
a user's variable whose object the snippet replaced is written, and only where it came from; the `i` of a library's
loop is never written.
"""

from __future__ import annotations

import os
import sys
from types import CodeType, FrameType, GetSetDescriptorType, ModuleType
from typing import Any

from ..boundary.back_edge_trace import BackEdgeTrace, in_a_trace
from ..boundary.driving_loop import is_mark
from ..inspect import frame_locals
from ..inspect.classes import MRO, SPACE
from ..inspect.exclusive import exclusively
from ..inspect.frames import is_ours, outward

_LIBRARIES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_NOT_FILES = ("<frozen ", "<probe>")
_MAX_HOLDERS = 3  # at most so many holders of a replaced object are named
_MOST_FRAMES = 20  # named in an error
_IMMUTABLE = (int, float, str, bytes, bool, tuple, type(None))


class NoFrame(LookupError):
    """There is no such frame; the message names those that there are."""


class Namespace:
    """`names` is the snippet's namespace: locals of libraries between the user's frames, names bound by earlier
    snippets, globals of __main__, then globals and locals of the user's frames, innermost last."""

    def __init__(self, frame: FrameType | None, own: dict[str, Any], running: bool, chosen: str = "") -> None:
        """`running`: the frames belong to a thread that keeps running, so they are not kept.  chosen: only the
        innermost frame of this function, or the one with this number, whoever's it is.  Raises NoFrame."""
        self.names: dict[str, Any] = {}
        self._own, self._own_before = own, dict(own)  # a copy: another snippet may change `own` meanwhile
        self._origins: dict[str, FrameType | dict[str, Any]] = {}
        self._before: dict[str, Any] = {}
        copies = frame_locals.Copies()  # of a thread that goes on: emptied together

        def read(frame: FrameType) -> dict[str, Any]:
            return read_running(frame, copies) if running else frame_locals.read(frame)

        self._frames, libraries = ([_chosen(frame, chosen)], []) if chosen else _split_frames(frame)
        self._library_locals: dict[str, Any] = {}
        for frame in reversed(libraries):
            self._library_locals.update(read(frame))
        self.names.update(self._library_locals)
        self.names.update(self._own_before)
        self._add(vars(sys.modules["__main__"]))
        for frame in reversed(self._frames):
            self._add(frame.f_globals)
            if frame_locals.has_slots(frame) or frame.f_locals is not frame.f_globals:
                self._add(read(frame), frame)
        for names in (self.names, self._before, self._origins):
            names.pop("__builtins__", None)  # exec adds its own
        if running:
            empty_running([*self._frames, *libraries], copies)
            self._frames.clear()

    def _add(self, values: dict[str, Any], frame: FrameType | None = None) -> None:
        # One C call each: another thread may bind a new global at any time.
        self.names.update(values)
        self._before.update(values)
        self._origins.update(dict.fromkeys(values, values if frame is None else frame))

    def where(self, name: str) -> str:
        """Where this name lives, in words."""
        origin = self._origins.get(name)
        if isinstance(origin, FrameType):
            code = origin.f_code
            return f"{code.co_name} ({os.path.basename(code.co_filename)}:{origin.f_lineno})"
        if isinstance(origin, dict):
            return f"globals of {origin.get('__name__', '?')}"
        return "an earlier snippet" if name in self._own_before else "a library's frame"

    def write(self, keep: frozenset[str]) -> list[str]:
        """Write back what the snippet replaced, except names in `keep`; returns what was bound, as text."""
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
        return [f"{self._qualified_name(name)}{self._still_held(name)}" for name in changed]

    def release(self, codes: list[CodeType]) -> None:
        """Keep the snippet's own names, and only those of the job's names that the snippet's functions refer to."""
        job_names = {name for name, value in self._library_locals.items() if self.names.get(name, self) is value}
        job_names -= self._own_before.keys()
        job_names |= self._origins.keys()
        for name in self._own_before.keys() - self.names.keys() - job_names:
            self._own.pop(name, None)
        mine = {name: self.names[name] for name in self.names.keys() - job_names - {"__builtins__"}}
        self._own.update({name: value for name, value in mine.items() if self._own_before.get(name, self) is not value})
        referred = {name for code in codes for name in _names_in_functions(code)}
        for name in job_names - referred:
            self.names.pop(name, None)
        for held in (self._library_locals, self._own_before, self._before, self._origins, self._frames):
            held.clear()

    def _qualified_name(self, name: str) -> str:
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
        return f"; {', '.join(holders[:_MAX_HOLDERS])} still {'holds' if len(holders) == 1 else 'hold'} the old object"


def _chosen(frame: FrameType | None, chosen: str) -> FrameType:
    frames = [each for each in outward(frame) if not is_ours(each)]
    names = [str(getattr(each.f_code, "co_qualname", each.f_code.co_name)) for each in frames]
    for number, (each, name) in enumerate(zip(frames, names, strict=True)):
        if chosen in (str(number), name, each.f_code.co_name):
            return each
    told = ", ".join(f"{number} {name}" for number, name in enumerate(names[:_MOST_FRAMES]))
    raise NoFrame(f"no frame {chosen!r} around the step; there are {told or 'none'}")


def _split_frames(frame: FrameType | None) -> tuple[list[FrameType], list[FrameType]]:
    """(the user's frames, libraries' frames between them), both from this frame outward.

    A job that is an installed program has no user code; then packages' code counts as the user's.
    """
    frames = list(outward(frame))
    kinds = [code_owner(frame) for frame in frames]
    for kind in (USERS, PACKAGES):
        if kind in kinds:
            first, last = kinds.index(kind), len(kinds) - kinds[::-1].index(kind)
            users = [frame for frame, owner in zip(frames, kinds, strict=True) if owner == kind]
            return users, [frame for frame in frames[first:last] if frame not in users]
    return [], []


USERS, PACKAGES, _OTHERS = range(3)


def code_owner(frame: FrameType) -> int:
    """Whose code the frame runs: the user's, an installed package's, or other code (torch's, Python's or ours)."""
    return file_owner(frame.f_code.co_filename)


def file_owner(file: str) -> int:
    """Likewise, of code in this file."""
    torch = getattr(sys.modules.get("torch"), "__file__", None) or os.__file__
    if any(library in file for library in _LIBRARIES):
        return _OTHERS if file.startswith(os.path.dirname(torch) + os.sep) else PACKAGES
    roots = (os.path.dirname(os.__file__) + os.sep, os.path.dirname(torch) + os.sep)
    return _OTHERS if file.startswith((*roots, *_NOT_FILES)) else USERS


def attributes(value: Any) -> list[tuple[str, Any]]:
    """Attributes of a plain instance, and submodules of an nn.Module; none of its properties or methods runs."""
    for kind in MRO(type(value)):
        if "__dict__" in SPACE(kind) and type(SPACE(kind)["__dict__"]) is not GetSetDescriptorType:
            return []  # a proxy redefines __dict__
    try:
        held = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return []
    modules = held.get("_modules")
    return [*held.items(), *(modules.items() if type(modules) is dict else ())]


def _names_in_functions(code: CodeType) -> set[str]:
    """Names that nested code refers to: the snippet's functions may outlive it."""
    names: set[str] = set()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names.update(constant.co_names)
            names |= _names_in_functions(constant)
    return names


def read_running(frame: FrameType, copies: frame_locals.Copies) -> dict[str, Any]:
    """The variables of a frame of another thread; empty_running() is next."""
    copies.expect(frame)
    return dict(frame.f_locals)


def empty_running(frames: list[FrameType], copies: frame_locals.Copies) -> None:
    """Empty the copies that reading left in another thread's frames, unless it is in a trace function."""

    def is_quiet(frame: FrameType) -> bool:
        return frame.f_trace is None or type(frame.f_trace) is BackEdgeTrace or is_mark(frame.f_trace)

    quiet = [frame for frame in frames if frame_locals.has_slots(frame) and is_quiet(frame)]

    def change() -> None:
        for frame in quiet:
            copies.take(frame)
        copies.empty()

    if frame_locals.COPIES:
        exclusively(change, in_a_trace)
