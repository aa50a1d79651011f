"""What a look at the tensors of a rank has found, folded by holder, and how that has grown since the look before.

Made by Connection.memory, shown by the verb memory.  Invariant: pure; sums are of listed bytes, and what is not listed
is a number of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .. import protocol as wire
from .holders import Tensor, tensors_of

_WHY = {
    wire.UNSEEN_TORCH: "torch is not imported",
    wire.UNSEEN_AUTOGRAD: "gradients and graphs are left out: no boundary between two steps came, or a thread was in a "
    "backward pass",
    wire.UNSEEN_GRAPHS: "what graphs hold is left out: this torch does not show it",
    wire.UNSEEN_WALK: "some variables were not followed to the end: there are too many objects",
    wire.UNSEEN_NODES: "some graphs were not read to the end: they are too large",
}


@dataclass(frozen=True)
class RankMemory:
    """count: boundaries since the attach; pieces_s: how long the training was held at each boundary; unlisted: bytes
    of the C library (`cpu`) and of each device's allocator that are in no tensor of the list; notes: what was left out.

    Example: `[each.unlisted for each in job.memory()]`
    """

    rank: int
    count: int
    at_boundary: bool
    tensors: tuple[Tensor, ...]
    pieces_s: tuple[float, ...]
    unlisted: Mapping[str, int]
    notes: tuple[str, ...]
    before: RankMemory | None = None

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.tensors)


@dataclass(frozen=True)
class Group:
    """Tensors of one kind with one holder; of activations, made by one module too."""

    kind: str
    holder: str
    module: str | None
    tensors: int
    bytes: int


def rank_memory(rank: int, looks: Sequence[Mapping[str, Any]]) -> RankMemory:
    """looks: as the agent has listed them, the newest last."""
    listed, tensors = looks[-1], tuple(tensors_of(looks[-1]))
    notes = [_WHY.get(each, each) for each in listed["unseen"]]
    if listed["left_storages"]:
        left = sum(listed["left_bytes"].values())
        notes.append(f"{listed['left_storages']} small tensors ({left} bytes) are not told one by one")
    return RankMemory(
        rank,
        listed["count"],
        listed["at_boundary"],
        tensors,
        tuple(each / 1e9 for each in listed["held_ns"]),
        _unlisted(listed, tensors),
        tuple(notes),
        rank_memory(rank, looks[:-1]) if looks[1:] else None,
    )


def _unlisted(listed: Mapping[str, Any], tensors: Iterable[Tensor]) -> dict[str, int]:
    given_out = dict(listed["allocated"])
    if listed.get("malloc"):
        given_out["cpu"] = listed["malloc"]
    told = [*((each.device, each.bytes) for each in tensors), *listed["left_bytes"].items()]
    for device, size in told:
        if device in given_out:
            given_out[device] -= size
    return {device: size for device, size in given_out.items() if size >= 0}  # else another library gives it out


def folded(ranks: Iterable[RankMemory]) -> list[Group]:
    """The groups of all ranks together, the largest first."""
    found: dict[tuple[str, str, str | None], tuple[int, int]] = {}
    for each in (tensor for rank in ranks for tensor in rank.tensors):
        key = each.kind, each.group, each.module if each.kind == wire.ACTIVATION else None
        count, size = found.get(key, (0, 0))
        found[key] = count + 1, size + each.bytes
    groups = [Group(*key, count, size) for key, (count, size) in found.items()]
    return sorted(groups, key=lambda group: -group.bytes)


def growth(ranks: Iterable[RankMemory]) -> list[Group]:
    """What has grown since the look before, of ranks that had one: tensors and bytes are those that came since."""
    compared = [rank for rank in ranks if rank.before is not None]
    before = {(each.kind, each.holder): each for each in _by_holder(each.before for each in compared if each.before)}
    grown = []
    for now in _by_holder(compared):
        then = before.get((now.kind, now.holder), Group(now.kind, now.holder, None, 0, 0))
        grown.append(Group(now.kind, now.holder, None, now.tensors - then.tensors, now.bytes - then.bytes))
    return sorted((each for each in grown if each.bytes > 0), key=lambda group: -group.bytes)


def _by_holder(ranks: Iterable[RankMemory]) -> list[Group]:
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for group in folded(ranks):
        count, size = found.get((group.kind, group.holder), (0, 0))
        found[group.kind, group.holder] = count + group.tensors, size + group.bytes
    return [Group(kind, holder, None, count, size) for (kind, holder), (count, size) in found.items()]
