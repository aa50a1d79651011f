"""What autograd's graphs hold, read node by node without unpacking anything.

Made by look.py, at a boundary only: no thread is in a backward pass then.  A node's `_raw_saved_*` are SavedTensors;
their `data` is the tensor itself or, under saved-tensor hooks, what the hook packed, and reading it runs no hook.
Invariant: a SavedTensor points into its node and is dropped before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import thread_time
from types import GetSetDescriptorType
from typing import Any

from ... import protocol as wire
from ..inspect.classes import MRO, SPACE, class_name, loaded, own_dict
from .owners import Owners
from .storages import Storage, Storages
from .walk import Root, Walk

_LOOK_AT_CLOCK = 256  # nodes between two looks at the clock
_ACCUMULATE = "AccumulateGrad"
# change the shape of a parameter or its type: what uses that is as good as beside the parameter
_RELABELS = {"TBackward0", "TransposeBackward0", "PermuteBackward0", "ToCopyBackward0", "ViewBackward0",
             "ExpandBackward0"}  # fmt: skip


class _Node:
    """suffix: of the place of `base`, which keeps the graph; before, after: the nearest modules with parameters in the
    direction of the inputs and of the output; direct: a parameter is beside it."""

    __slots__ = ("after", "base", "before", "direct", "node", "number", "rows", "suffix")

    def __init__(self, node: Any, base: Any, suffix: str) -> None:
        self.node, self.base, self.suffix = node, base, suffix
        self.number = node._sequence_nr()
        self.before: str | None = None
        self.after: str | None = None
        self.direct = False
        self.rows: list[Storage] = []


class Graphs:
    """read() the graph of each tensor that keeps one.  known: ids of nodes that need not be read again, and of all that
    were; a node's id is its own as long as its graph lives."""

    def __init__(self, storages: Storages, owners: Owners, walk: Walk, known: set[int]) -> None:
        self._storages, self._owners, self._walk, self._known = storages, owners, walk, known
        self._saved: Any = loaded("torch")._C._autograd.SavedTensor
        self.readable = hasattr(self._saved, "data")  # older torch has only `_saved_*`, which would run the hooks
        self._nodes: dict[int, _Node] = {}
        self._fields: dict[Any, list[Any]] = {}

    def read(self, tensor: Any, base: Any, suffix: str, until: float) -> bool:
        """Claim what is saved in the graph that this tensor keeps, and with it the place of `base`; False if the time
        was up before its end: what is left is read the next time."""
        start = self._storages.node(tensor)
        if start is None or id(start) in self._known:
            return True
        new = [_Node(start, base, suffix)]
        self._known.add(id(start))
        for at in new:  # it grows meanwhile
            self._nodes[id(at.node)] = at
            for each in _inputs(at.node):
                if id(each) not in self._known:
                    self._known.add(id(each))
                    new.append(_Node(each, base, suffix))
        order = sorted(new, key=lambda each: each.number)
        left = self._claim(order, until)
        self._known.difference_update(id(each.node) for each in left)  # these are the ones towards the output
        return not left and thread_time() < until

    def _claim(self, order: list[_Node], until: float) -> list[_Node]:
        """Read the nodes, from the inputs on; those for which there was no time."""
        left: list[_Node] = []
        for place, each in enumerate(order):
            if place % _LOOK_AT_CLOCK == _LOOK_AT_CLOCK - 1 and thread_time() > until:
                left = order[place:]
                break
            self._read(each)
            self._look_back(each)
        for each in reversed(order):
            self._look_ahead(each)
        for each in order:
            for row in each.rows:
                row.saved_by, row.module, row.until = class_name(each.node), each.before or each.after, each.after
        return left

    def _read(self, at: _Node) -> None:
        for data, hook in self._saved_by(at.node):
            if self._storages.is_tensor(data):
                row = self._storages.claim(data, wire.ACTIVATION, at.base, at.suffix)
                if row is not None:
                    at.rows.append(row)
            else:
                for held in (data, hook):
                    self._follow(held, at, f" packed by a hook for {class_name(at.node)}")
        if class_name(at.node) == _ACCUMULATE:
            self._storages.claim(at.node.variable, wire.ACTIVATION, at.base, at.suffix)  # a leaf, as an input may be
        if own_dict(at.node):
            self._follow(at.node, at, f" ctx of {class_name(at.node)}")

    def _saved_by(self, node: Any) -> Iterator[tuple[Any, Any]]:
        """What this node has saved: a tensor, or what a hook made of it and the hook that would unpack that."""
        kind = type(node)
        if kind not in self._fields:
            fields = (item for each in MRO(kind) for item in SPACE(each).items())
            self._fields[kind] = [
                field
                for name, field in fields
                if name.startswith("_raw_saved_") and type(field) is GetSetDescriptorType
            ]
        for field in self._fields[kind] if self.readable else ():
            try:
                saved = field.__get__(node)
            except Exception:  # freed
                continue
            for each in saved if type(saved) is tuple else (saved,):
                if type(each) is self._saved and (data := each.data) is not None:
                    yield data, None if self._storages.is_tensor(data) else each.unpack_hook

    def _follow(self, held: Any, at: _Node, text: str) -> None:
        self._walk.root(held, Root(at.base, at.suffix + text, wire.ACTIVATION))

    def _look_back(self, at: _Node) -> None:
        """The module before the node: that of a parameter beside it, else that of its latest input."""
        latest = -1
        for each in _inputs(at.node):
            known = self._nodes.get(id(each))
            if known is None:
                continue
            if class_name(each) == _ACCUMULATE:
                if owner := self._owners.owner_of(each.variable):
                    at.before, at.direct, latest = owner, True, known.number
            elif known.number > latest and not at.direct:
                latest, at.before = known.number, known.before
            if known.direct and class_name(each) in _RELABELS:
                at.before, at.direct = known.before, True

    def _look_ahead(self, at: _Node) -> None:
        """Likewise towards the output: tell the inputs which module comes after them."""
        after = at.before if at.direct else at.after
        at.after = after
        for each in _inputs(at.node):
            known = self._nodes.get(id(each))
            if known is not None and known.after is None:
                known.after = after

    def forget(self) -> None:
        """The nodes of the deepest graph first."""
        for each in sorted(self._nodes.values(), key=lambda each: each.number):
            each.rows.clear()
            each.node = each.base = None
        self._nodes.clear()
        self._fields.clear()


def _inputs(node: Any) -> list[Any]:
    return [each for each, _ in node.next_functions if each is not None]
