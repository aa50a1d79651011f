"""Who holds the tensors that no root leads to: a library's globals, a cycle of garbage, or nobody in Python.

Made by look.py.  Every level is one search of the collector's through all objects, for all targets at once.
Invariant: our own frames and containers are not among the holders.
"""

from __future__ import annotations

import gc
import re
from itertools import compress
from time import thread_time
from types import FrameType
from typing import Any

from ... import protocol as wire
from ..inspect.classes import class_name
from ..inspect.frames import is_of_agent
from .contents import Contents
from .places import NOWHERE, Places
from .roots import Roots
from .storages import Storage

_LEVELS, _WIDTH = 6, 48
_LEVEL_S = 0.05  # that a level takes, at least
_PLAIN = {"dict", "list", "tuple", "set", "cell"}
_ONLY_NATIVE = "held by C++ only"
_GARBAGE = "waits for the garbage collector, "


class _Path:
    """From a tensor outwards: `at` is the outermost object so far, `text` leads from it to the tensor.

    Between two pieces `at` is None, and the object is known by its id and that of its class.
    """

    __slots__ = ("at", "classes", "id", "kind_id", "row", "seen", "text")

    def __init__(self, at: Any, row: Storage) -> None:
        self.row, self.text = row, ""
        self.seen: set[int] = set()
        self.classes: list[str] = []
        self.step_to(at)

    def step_to(self, at: Any) -> None:
        self.at, self.id, self.kind_id = at, id(at), id(type(at))
        self.seen.add(self.id)
        self.classes.append(class_name(at))


class Referrers:
    """begin() with some tensors, then climb() at one boundary after the other until it says that all are placed.

    sure: all that the user's references lead to is known, so a cycle is garbage; search_s: what the search before took.
    """

    def __init__(self, roots: Roots, places: Places, sure: bool, search_s: float) -> None:
        self._level_s = max(_LEVEL_S, search_s)
        self._roots, self._places = roots, places
        self._cycle = f"{_GARBAGE * sure}in a cycle through"
        self._paths: list[_Path] = []
        self._contents = Contents()
        self._levels = 0
        self.gone: list[Storage] = []  # what was freed between two pieces

    def begin(self, targets: list[tuple[Any, Storage]]) -> None:
        self._paths = [_Path(*each) for each in targets]

    def climb(self, until: float, ours: set[int]) -> bool:
        """Give each row its place; False if that takes another piece.  ours: ids of what of ours refers to them."""
        if self._paths and self._paths[0].at is None:
            self._regain()
            self._climb_level(ours)  # however long it took to find them: each piece is a step further
        while self._paths and thread_time() + self._level_s < until:
            self._climb_level(ours)
        for each in self._paths:
            each.at = None
        return not self._paths

    def _climb_level(self, ours: set[int]) -> None:
        self._paths = self._level(ours)
        self._levels += 1
        while self._paths and self._levels >= _LEVELS:
            last = self._paths.pop()
            self._settle(last, f"‹{_telling(last.classes)}›{last.text}", wire.OTHER)

    def _regain(self) -> None:
        """Find the objects again, without anything of ours having kept them."""
        wanted = {each.id for each in self._paths}
        everything = gc.get_objects()
        found = {id(each): each for each in compress(everything, map(wanted.__contains__, map(id, everything)))}
        del everything
        for each in self._paths:
            thing = found.get(each.id)
            if thing is not None and id(type(thing)) == each.kind_id:
                each.at = thing
            else:
                self.gone.append(each.row)
        self._paths = [each for each in self._paths if each.at is not None]

    def _level(self, ours: set[int]) -> list[_Path]:
        wanted = [each.at for each in self._paths]
        mine = ours | {id(wanted), id(self._paths), *map(id, self._paths)}
        holders = [each for each in gc.get_referrers(*wanted) if id(each) not in mine and not _is_ours(each)]
        held = {id(each): {id(inner) for inner in gc.get_referents(each)} for each in holders[: 64 * _WIDTH]}
        following = [each for each in self._paths if self._further(each, holders, held)]
        wanted.clear()
        holders.clear()
        self._contents.forget()
        return following

    def _further(self, path: _Path, holders: list[Any], held: dict[int, set[int]]) -> bool:
        """Whether the path goes on."""
        mine = [each for each in holders if id(path.at) in held.get(id(each), ())][:_WIDTH]
        if not mine:
            inside = f": {_telling(path.classes)}{path.text}" if path.text else ""
            self._settle(path, _ONLY_NATIVE + inside, wire.OTHER)
            return False
        of_module = next((each for each in mine if id(each) in self._roots.spaces), None)
        if of_module is not None:
            name, label = self._roots.spaces[id(of_module)], self._contents.label(of_module, path.at)
            self._settle(path, f"{name}{_as_attribute(label)}{path.text}", wire.CACHE)
            return False
        new = [each for each in mine if id(each) not in path.seen]
        if not new:
            self._settle(path, f"{self._cycle} {_telling(path.classes)}", wire.OTHER)
            return False
        path.text = self._contents.label(new[0], path.at) + path.text
        path.step_to(new[0])
        return True

    def forget(self) -> None:
        self._paths.clear()

    def _settle(self, path: _Path, text: str, kind: str) -> None:
        path.row.place = self._places.add(NOWHERE, text)
        path.row.kind = path.row.kind if path.row.kind != wire.OTHER else kind
        path.row.base = path.at = None


def _as_attribute(label: str) -> str:
    found = re.fullmatch(r"\['(.*)'\]", label)
    return f".{found[1]}" if found else label


def _telling(classes: list[str]) -> str:
    """The class in a chain of holders that says most: the outermost that is no plain container."""
    return next((each for each in reversed(classes[1:]) if each not in _PLAIN), "plain containers")


def _is_ours(thing: Any) -> bool:
    return type(thing) is FrameType and is_of_agent(thing)
