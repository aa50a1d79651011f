"""The walk from the user's references to all that they lead to, breadth first, and the place of what it met.

Made by look.py.  Invariant: libraries' modules and classes are not entered: what only these hold is searched for from
the other end (referrers.py).
"""

from __future__ import annotations

import gc
import types
from collections import deque
from collections.abc import Collection, Iterable
from functools import _lru_cache_wrapper
from time import thread_time
from typing import Any, NamedTuple

from ..inspect.classes import class_name, is_class
from .contents import Contents
from .places import NOWHERE, Places
from .roots import Roots

_LOOK_AT_CLOCK = 1024  # objects between two looks at the clock
_LONGEST_PATH = 4096
_ATOMS = (
    str, int, float, bool, bytes, complex, range, slice, type(None), type(...), types.CodeType, types.ModuleType,
    types.BuiltinFunctionType, types.GetSetDescriptorType, types.MemberDescriptorType, types.WrapperDescriptorType,
    types.MethodDescriptorType, types.MappingProxyType, property, staticmethod, classmethod,
)  # fmt: skip


class Root(NamedTuple):
    """Where a path begins: at the place of `base` (None: nowhere).  kind: of the storages that it leads to."""

    base: Any
    text: str
    kind: str = ""


class Found(NamedTuple):
    """The place of an object.  via: the classes of what lies on the way to it, outermost first; kind: of its root."""

    place: int
    way: tuple[Any, ...]
    kind: str


class Walk:
    """root() what to begin with, then run().  wanted: ids of classes, whose instances are `met`, in order; atoms:
    classes that hold nothing, beside Python's own."""

    def __init__(self, roots: Roots, wanted: Collection[int], atoms: Iterable[type] = ()) -> None:
        self._roots, self._wanted = roots, wanted
        self.met: list[Any] = []
        self._atoms = {id(kind) for kind in (*_ATOMS, *atoms)}
        self._parents: dict[int, Any] = dict.fromkeys((*roots.spaces, *roots.frames))  # id -> who led there
        self._begun: dict[int, Root] = {}
        self._queue: deque[Any] = deque()
        self._places: dict[int, Found] = {}
        self.contents = Contents()
        self.named: dict[int, Root] = {}  # id of an object with a better name than the path that led there
        self.walked, self.is_cut = 0, False

    def root(self, thing: Any, root: Root) -> None:
        is_seen = id(thing) in self._parents and id(thing) not in self._roots.spaces
        if is_seen or id(thing) in self._begun or self._is_atom(thing):
            return
        self._begun[id(thing)] = root
        self._parents[id(thing)] = None
        self._queue.append(thing)
        if id(type(thing)) in self._wanted:
            self.met.append(thing)

    def run(self, until: float) -> None:
        """Walk on from what is queued, but not longer than to this moment of thread_time()."""
        parents, queue, atoms, referents = self._parents, self._queue, self._atoms, gc.get_referents
        wanted, met = self._wanted, self.met
        while queue:
            holder = queue.popleft()
            self.walked += 1
            if self.walked % _LOOK_AT_CLOCK == 0 and thread_time() > until:
                self.is_cut = True
                queue.clear()
                return
            for each in referents(holder):
                kind = id(type(each))
                if kind in atoms or id(each) in parents:
                    continue
                if is_class(each) and not self._roots.is_users_class(each):
                    continue
                parents[id(each)] = holder
                queue.append(each)
                if kind in wanted:
                    met.append(each)

    def _is_atom(self, thing: Any) -> bool:
        """Whether nothing can be held by it that is looked for."""
        return id(type(thing)) in self._atoms or (is_class(thing) and not self._roots.is_users_class(thing))

    def find(self, thing: Any, places: Places) -> Found:
        """Where an object is, from its root."""
        chain = [thing]
        while (found := self._known(chain[-1], places)) is None:
            parent = self._parents.get(id(chain[-1]))
            if parent is None or len(chain) > _LONGEST_PATH:
                found = Found(places.add(NOWHERE, f"‹{class_name(chain[-1])}›"), (type(chain[-1]),), "")
                break
            chain.append(parent)
        self._places[id(chain[-1])] = found
        while len(chain) > 1:
            holder, held = chain.pop(), chain[-1]
            number = places.add(found.place, self.contents.label(holder, held))
            found = self._places[id(held)] = Found(number, (*found.way[-7:], type(held)), found.kind)
        return found

    def _known(self, thing: Any, places: Places) -> Found | None:
        known = self._places.get(id(thing))
        root = self.named.get(id(thing)) or self._begun.get(id(thing))
        if known is not None or root is None:
            return known
        if root.base is None:
            return Found(places.add(NOWHERE, root.text) if root.text else NOWHERE, (type(thing),), root.kind)
        above = self.find(root.base, places)
        return Found(places.add(above.place, root.text), (*above.way[-7:], type(thing)), root.kind or above.kind)

    def know(self, thing: Any, place: int) -> None:
        """It was found otherwise, to be there."""
        self._places[id(thing)] = Found(place, (type(thing),), "")

    def forget(self) -> None:
        for each in (self._parents, self._begun, self._queue, self._places, self.named, self.met):
            each.clear()
        self.contents.forget()


def is_cached(way: tuple[Any, ...]) -> bool:
    """Whether functools.lru_cache is on the way."""
    return _lru_cache_wrapper in way
