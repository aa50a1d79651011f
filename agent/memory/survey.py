"""All tensors at this moment: the walk, what modules own, the graphs, then what no root leads to.

Made by look.py, for each piece that looks at all of them.  Invariant: after forget() nothing here refers to an object
of the job's.
"""

from __future__ import annotations

import gc
from time import thread_time
from types import FrameType
from typing import Any

from ... import protocol as wire
from ..inspect.classes import loaded
from ..inspect.frames import frames_of_others, outward
from .graphs import Graphs
from .owners import Owners, owning_classes
from .places import NOWHERE, Places
from .roots import Roots
from .storages import Storage, Storages
from .walk import Found, Root, Walk, is_cached

_WALK_S, _PACKED_S = 0.08, 0.03  # at most, of CPU time
_WALKED_ON_S = 0.10  # of a piece that is for the walk alone, because it takes longer than the first of these
_MOST_BARREN, _MOST_WALKS = 500_000, 12  # ids that are kept between two pieces; walks
_NEW = 0.25  # of what a walk has come to, or the next one is not worth that the job waits
_SOUGHT = 32  # of those that no root leads to, the largest are looked for from the other end
_WORTH_SEEKING = 0.01  # if they have this share of the bytes
_ENGINE = "_engine_run_backward"

Rest = list[tuple[Any, Storage | None]]  # tensors that no root leads to; the rows of those with a storage of their own


class Known:
    """What is carried from one piece to the next, plain data.  barren: ids of what a walk need not enter again; unseen:
    what was not looked at, of wire.UNSEEN_*."""

    def __init__(self) -> None:
        self.barren: set[int] = set()
        self.walks = 0
        self.nodes: set[int] = set()
        self.classes: set[int] = set()  # ids of those of tensors that were claimed
        self.activations: dict[int, Storage] = {}
        self.unseen: set[str] = set()


class Survey:
    """follow(), read_graphs() until it says that all are read, rest(), place(), then forget().

    frame: as of Look.piece(); known: what earlier pieces have found in graphs.
    """

    def __init__(self, frame: FrameType | None, places: Places, known: Known) -> None:
        self._frame, self._places, self._known = frame, places, known
        self.storages = Storages(frame is not None and not _is_in_backward(), known.classes)
        self.roots = Roots()
        torch = loaded("torch")
        wanted = {*self.storages.classes, *owning_classes()}
        self.walk = Walk(self.roots, wanted, (torch.dtype, torch.device, torch.Size), known.barren)
        self._owners = Owners(self.storages, self.walk)
        self._graphs = Graphs(self.storages, self._owners, self.walk, known.nodes)
        self._unreached: list[Any] = []
        self._rest: Rest = []

    def follow(self) -> bool:
        """Find what the user's references lead to; False if the next piece has to go on with that."""
        begun = thread_time()
        for value, name in self.roots.variables(self._frame):
            self.walk.root(value, Root(None, name))
        for space, name in self.roots.globals():
            self.walk.contents.name_space(space)
            self.walk.root(space, Root(None, name))
        self.walk.run(begun + _WALK_S)
        goes_on = self.walk.is_cut and self._frame is not None and self._comes_further(begun + _WALKED_ON_S)
        self._owners.claim(self.walk.met)
        self._claim_met(0)
        for key, row in self._known.activations.items():
            self.storages.found.setdefault(key, row)
        return not goes_on

    def _comes_further(self, until: float) -> bool:
        """Whether the next walk will, for much of what this one has come to is barren."""
        known, new = self._known, set[int]()
        if known.walks < _MOST_WALKS and len(known.barren) < _MOST_BARREN:
            self.walk.run(until)
            new = self.walk.barren()
        known.walks += 1
        known.barren |= new
        return len(new) > _NEW * self.walk.walked

    def read_graphs(self, until: float) -> bool:
        """Claim what autograd has saved; False if there was no time for all, in which case it goes on where it was."""
        if not self.storages.reads_autograd or not self._graphs.readable:
            self._known.unseen.add(wire.UNSEEN_GRAPHS if self.storages.reads_autograd else wire.UNSEEN_AUTOGRAD)
            return True
        tensors = [(each, each, "") for each in self.walk.met if self.storages.is_tensor(each)]
        tensors += self._owners.gradients + [(each, each, "") for each in self._unreached]
        met = len(self.walk.met)
        are_read = all(self._graphs.read(*each, until) for each in tensors)
        self.walk.run(thread_time() + _PACKED_S)  # what hooks have packed
        self._claim_met(met)
        return are_read

    def rest(self) -> list[tuple[Any, Storage]]:
        """Find all other tensors; those that are worth to be looked for from the other end, largest first."""
        met = {id(each) for each in self.walk.met}
        found = gc.get_referrers(*self._tensor_classes())
        self._forget_freed(found)
        self._unreached = [each for each in found if self.storages.is_tensor(each) and id(each) not in met]
        if not self.read_graphs(thread_time() + _PACKED_S):
            self._known.unseen.add(wire.UNSEEN_NODES)
        self._rest = [(each, self.storages.claim(each, wire.OTHER, None)) for each in self._unreached]
        self._owners.claim_buckets([row for _, row in self._rest if row is not None])
        return self._worth_seeking()

    def _forget_freed(self, tensors: list[Any]) -> None:
        """Activations that an earlier piece has read, and that are gone; others may lie in their memory by now."""
        there = {id(each) for each in tensors}
        for key, row in list(self._known.activations.items()):
            if row.tensor not in there:
                del self._known.activations[key]
                if self.storages.found.get(key) is row:
                    del self.storages.found[key]

    def own_ids(self, sought: list[Any]) -> set[int]:
        """Of what is ours and refers to tensors that are sought."""
        return {id(each) for each in (sought, *sought, self._rest, *self._rest, self._unreached, self.walk.met)}

    def _claim_met(self, first: int) -> None:
        for each in self.walk.met[first:]:
            if self.storages.is_tensor(each):
                self.storages.claim(each, wire.VARIABLE, each)
                self._owners.gradient(each, each)

    def _tensor_classes(self) -> list[type]:
        """Those whose instances are asked for: torch's own, the user's, and all of which one was met."""
        torch = loaded("torch")
        met = {id(type(each)) for each in self.walk.met} | self._known.classes
        return [
            kind
            for key, kind in self.storages.classes.items()
            if kind is torch.Tensor or kind is torch.nn.Parameter or key in met or self.roots.is_users_class(kind)
        ]

    def _worth_seeking(self) -> list[tuple[Any, Storage]]:
        found = sorted(
            ((row.bytes, at) for at, (_, row) in enumerate(self._rest) if row and row.base is None), reverse=True
        )
        whole = sum(each.bytes for each in self.storages.found.values())
        if self._frame is None:  # many are gradients or in graphs, and a search takes the agent's thread long
            return []
        if sum(size for size, _ in found) <= _WORTH_SEEKING * whole:
            return []
        largest = [self._rest[at] for _, at in found[:_SOUGHT]]
        return [(tensor, row) for tensor, row in largest if row is not None]

    def place(self) -> None:
        """Give each row the number of its place, and let go of what that was found by."""
        self._known.unseen.discard(wire.UNSEEN_WALK)  # of an earlier piece
        if self.walk.is_cut or self.walk.is_too_large:
            self._known.unseen.add(wire.UNSEEN_WALK)
        for tensor, row in self._rest:
            if row is not None and row.place != NOWHERE:
                self.walk.know(tensor, row.place)
        for row in self.storages.found.values():
            if row.base is not None:
                found = self.walk.find(row.base, self._places)
                row.place = self._places.add(found.place, row.suffix)
                self._judge(row, found)
                row.base = None
            if row.kind == wire.ACTIVATION:
                self._known.activations[row.key] = row

    def _judge(self, row: Storage, found: Found) -> None:
        """What lies on the way to it tells more of a variable."""
        if row.kind == wire.VARIABLE:
            row.kind = found.kind or row.kind
            if any(self._owners.is_optimizer(kind) for kind in found.way):
                row.kind = wire.OPTIMIZER
            elif is_cached(found.way):
                row.kind = wire.CACHE

    def forget(self) -> None:
        self._frame = None
        self._graphs.forget()
        self._owners.forget()
        self.walk.forget()
        self._rest.clear()
        self._unreached.clear()
        for row in self.storages.found.values():
            row.base = None


def _is_in_backward() -> bool:
    """Whether another thread is in a backward pass, beside the one that trains."""
    tops = frames_of_others()
    return any(each.f_code.co_name == _ENGINE for top in tops.values() for each in outward(top))
