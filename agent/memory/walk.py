"""The walk from the user's references to all that they lead to, breadth first, and the place of what it met.

Made by survey.py.  Where it takes longer than a piece of a look, the next one walks anew, but not into what is barren:
so what is found belongs to one moment.  For the walk to come further with each piece, what is too broad goes depth
first.  Invariant: libraries' modules and classes are not entered: what only these hold is searched for from the other
end (referrers.py).
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

_LOOK_AT_CLOCK, _EACH = 10_000, 6  # between two looks, references followed; an object costs as much as so many
_AT_ONCE, _WIDE = 1024, 4096  # of what one object refers to, the rest comes last; so many wait: the last comes first
_MANY = 64  # are looked through for atoms alone before each is looked at
_LARGEST = 2_000_000  # a container with more is not entered: what it refers to is copied meanwhile
_NONE: frozenset[int] = frozenset()
_SIZED = frozenset(map(id, (list, tuple, dict, set)))
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


class _Rest(NamedTuple):
    """What a large object refers to beside what was entered already."""

    holder: Any
    held: list[Any]


class Walk:
    """root() what to begin with, then run().  wanted: ids of classes, whose instances are `met`, in order; atoms:
    classes that hold nothing, beside Python's own; barren: ids of what an earlier walk has found barren."""

    def __init__(
        self,
        roots: Roots,
        wanted: Collection[int],
        atoms: Iterable[type] = (),
        barren: frozenset[int] | set[int] = _NONE,
    ) -> None:
        self._roots, self._wanted, self._barren = roots, wanted, barren
        self.met: list[Any] = []
        self._atoms = {id(kind) for kind in (*_ATOMS, *atoms)}
        self._parents: dict[int, Any] = dict.fromkeys((*roots.spaces, *roots.frames))  # id -> who led there
        self._begun: dict[int, Root] = {}
        self._queue, self._rests = deque[Any](), deque[_Rest]()
        self._places: dict[int, Found] = {}
        self.contents = Contents()
        self.named: dict[int, Root] = {}  # id of an object with a better name than the path that led there
        self.walked, self.is_too_large = 0, False

    def root(self, thing: Any, root: Root) -> None:
        is_seen = id(thing) in self._parents and id(thing) not in self._roots.spaces
        if is_seen or id(thing) in self._barren or id(thing) in self._begun or self._is_atom(thing):
            return
        self._begun[id(thing)] = root
        self._parents[id(thing)] = None
        self._queue.append(thing)
        if id(type(thing)) in self._wanted:
            self.met.append(thing)

    @property
    def is_cut(self) -> bool:
        """Whether there is more to walk to."""
        return bool(self._queue or self._rests)

    def run(self, until: float) -> None:
        """Walk on from what is queued, but not longer than to this moment of thread_time()."""
        parents, queue, rests, atoms, wanted = self._parents, self._queue, self._rests, self._atoms, self._wanted
        left, met, referents, barren = _LOOK_AT_CLOCK, self.met, gc.get_referents, self._barren
        while queue or rests:
            if left < 0:
                left = _LOOK_AT_CLOCK
                if thread_time() > until:
                    return
            if queue:
                holder = queue.popleft() if len(queue) < _WIDE else queue.pop()
                kind = id(type(holder))
                held = referents(holder) if kind not in _SIZED or len(holder) < _LARGEST else self._too_many()
            else:
                holder, held = rests.popleft()
            if len(held) > _MANY:
                held = self._part(holder, held)
            self.walked += 1
            left -= _EACH + len(held)
            for each in held:
                kind = id(type(each))
                if kind in atoms:
                    continue
                key = id(each)
                if key in parents or key in barren:
                    continue
                if is_class(each) and not self._roots.is_users_class(each):
                    continue
                parents[key] = holder
                queue.append(each)
                if kind in wanted:
                    met.append(each)

    def _part(self, holder: Any, held: list[Any]) -> list[Any]:
        """What of all this is to be looked at now, each by itself."""
        part = held[-_AT_ONCE:]
        del held[-_AT_ONCE:]
        if held:
            self._rests.append(_Rest(holder, held))
        leads_nowhere = self._atoms.issuperset(map(id, map(type, part))) or self._barren.issuperset(map(id, part))
        return [] if leads_nowhere else part

    def _too_many(self) -> list[Any]:
        self.is_too_large = True
        return []

    def barren(self) -> set[int]:
        """Ids of what was walked to, leads to nothing that is wanted, and has nothing below it that is still to do:
        beside those that an earlier walk has found."""
        live: set[int] = set()
        for thing in (*self.met, *self._queue, *(each.holder for each in self._rests)):
            while thing is not None and id(thing) not in live:
                live.add(id(thing))
                thing = self._parents.get(id(thing))
        return self._parents.keys() - live

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
        for each in (self._parents, self._begun, self._queue, self._rests, self._places, self.named, self.met):
            each.clear()
        self.contents.forget()


def is_cached(way: tuple[Any, ...]) -> bool:
    """Whether functools.lru_cache is on the way."""
    return any(kind is _lru_cache_wrapper for kind in way)
