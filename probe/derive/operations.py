"""Operations of a group over all its ranks: which rows are the same operation, and when each rank arrived.

Called by probe.collectives.  Where the backend numbers the operations of a group alike on all ranks, equal numbers are
one operation, also if a thread beside the training issues it in another step on each rank.  Elsewhere, the n-th
operation that a rank issues on a group within a step is the n-th of every other rank, since ranks issue the same ones
in the same order or hang.  Invariant: a rank is said to lack an operation only where that is certain.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce

import numpy as np

from ..arrays.integers import NONE, Bools, Ints, distinct
from ..snapshot.rows import Rows
from ..snapshot.snapshot import Snapshot
from ..snapshot.source import Rank
from ..streams import BARE, COLLECTIVES, SPANS, STEPS

PAIRWISE = ("c10d::send", "c10d::recv_", "c10d::recv_any_source_")
_MOST = 1 << 24  # operations of one step
Key = tuple[str, tuple[int, ...]]


@dataclass(frozen=True)
class Operations:
    """Those of one group: arrays over operations, or over (operation, member).

    step: that of the first arrival; place: row of the member's table, NONE where it has none; time: of the arrival, in
    ns of one clock for all; known: whether the member would have a row if it had arrived.
    """

    name: str
    members: tuple[int, ...]
    step: Ints
    index: Ints  # within its step
    place: Ints
    time: Ints
    known: Bools
    rows: Sequence[Rows | None]  # of each member, None where it did not answer
    ranks: Sequence[Rank | None]

    @cached_property
    def arrived(self) -> Bools:
        return np.not_equal(self.place, NONE)

    def slot(self, name: str, absent: int = 0) -> Ints:
        """A slot of the rows, by operation and member."""
        found = np.full(self.place.shape, absent, np.int64)
        for member, rows in enumerate(self.rows):
            if rows is not None:
                here = self.arrived[:, member]
                found[here, member] = rows[name][self.place[here, member]]
        return found


@dataclass(frozen=True)
class _OfRank:
    """The collective operations of one rank on one group.  numbered: the backend's numbers of all of them, those of
    steps that are not whole too, are known and rise, and no operation between two ranks could count."""

    place: Ints  # rows of the group
    code: Ints  # step and index of each
    time: Ints
    number: Ints
    numbered: bool


def operations_of(job: Snapshot) -> Iterator[Operations]:
    """For each group whose members are known, the operations of every step that any rank recorded."""
    clocks: dict[str, int] = {}  # one offset for each kernel, whose ranks then do not differ by readings of the clock
    found: dict[Key, dict[int, _OfRank]] = {}
    answering: dict[int, _Answering] = {}
    if not any(len(rank.rows(COLLECTIVES)) for rank in job.ranks_with(COLLECTIVES)):
        return
    for rank in job.ranks_with(STEPS, SPANS):
        rows = rank.rows(COLLECTIVES)
        clock = clocks.setdefault(rank.facts.boot_id or rank.host, rank.facts.wall_offset_ns)
        answering[rank.rank] = one = _Answering(rank, rows, clock)
        for key, place, alone in _by_group(rank, rows):
            found.setdefault(key, {})[rank.rank] = _of_rank(one, place, alone)
    for (name, members), ranks in sorted(found.items()):
        yield _of_group(name, members, ranks, answering)


@dataclass(frozen=True)
class _Answering:
    """One rank, and how far its clock is behind the one that all times are of."""

    rank: Rank
    rows: Rows
    clock: int

    @cached_property
    def first_whole(self) -> int:
        """The first step whose operations the rank has recorded completely: after the attach and the tap's
        installation."""
        rows, timeline = self.rows, self.rank.timeline
        first = timeline.oldest(()) if timeline.steps else timeline.base
        since = self.rank.facts.collectives_ns
        if since is not None and timeline.steps:
            first = max(first, int(timeline.step(np.array([since]))[0]) + 1)
        overwritten = len(rows) > 0 and int(rows["seq"][0]) > 1
        return max(first, int(timeline.step(rows["start_ns"][:1])[0]) + 1) if overwritten else first

    @cached_property
    def is_on(self) -> bool:
        return self.rank.facts.taps.get("collectives", "on") == "on"

    def recorded_in(self, step: Ints) -> Bools:
        """Whether it recorded every operation that it issued in these steps."""
        result: Bools = self.is_on & (step >= self.first_whole) & (self.rank.timeline.flags(step) & BARE == 0)
        return result

    def recorded_since(self, time: Ints, same_clock: Bools) -> Bools:
        """Whether it recorded every operation that it issued from these moments on; where they are of another host,
        whose clock differs, from the step before them."""
        bare = self.rank.timeline.boundaries["count"][self.rank.timeline.boundaries["flags"] & BARE != 0]
        first = max(self.first_whole, int(bare.max(initial=NONE)) + 1 + self.rank.timeline.base if len(bare) else 0)
        result: Bools = self.is_on & (self.rank.timeline.step(time - self.clock) >= first + ~same_clock)
        return result


def _by_group(rank: Rank, rows: Rows) -> Iterator[tuple[Key, Ints, bool]]:
    """Places of each group's rows, without operations between two ranks; whether the group has none of those."""
    pairwise = [id for id, name in rank.log.strings.items() if name in PAIRWISE]
    between_two = np.isin(rows["operation"], pairwise)
    place = np.flatnonzero(~between_two)
    groups, mixed = rows["group"][place], {*distinct(rows["group"][between_two]).tolist()}
    ids: dict[Key, list[int]] = {}
    for id in distinct(groups).tolist():
        group = rank.log.groups.get(id, {})
        if group.get("ranks"):
            ids.setdefault((str(group.get("name")), tuple(group["ranks"])), []).append(id)
    for key, mine in ids.items():
        yield key, place[np.isin(groups, mine)], mixed.isdisjoint(mine)


def _of_rank(of: _Answering, place: Ints, alone: bool) -> _OfRank:
    rows = of.rows
    step, numbers = of.rank.timeline.step(rows["start_ns"][place]), rows["group_seq"][place]
    numbered = alone and bool((numbers >= 0).all() and (numbers[1:] > numbers[:-1]).all())
    order = np.lexsort((rows["seq"][place], step))
    place, step = place[order], step[order]
    first = np.searchsorted(step, step)
    kept = step >= of.first_whole
    code = step * _MOST + np.arange(len(step)) - first
    time = rows["start_ns"][place] + of.clock
    return _OfRank(place[kept], code[kept], time[kept], rows["group_seq"][place][kept], numbered)


def _numbered_alike(ranks: Collection[_OfRank]) -> bool:
    """Whether equal numbers are one operation: all numbers rise, and the ranks agree on one that is the n-th of its
    step on all of them.

    They do not after sends that were not recorded, which gloo counts, nor in a group that was made anew by its name.
    """
    if len(ranks) < 2 or not all(of.numbered for of in ranks):
        return False
    shared: Ints = reduce(np.intersect1d, [of.code for of in ranks])
    numbers = [of.number[np.isin(of.code, shared)] for of in ranks]
    return bool(np.logical_and.reduce([each == numbers[0] for each in numbers]).any())


def _of_group(
    name: str, members: tuple[int, ...], recorded: dict[int, _OfRank], answering: Mapping[int, _Answering]
) -> Operations:
    numbered = _numbered_alike(recorded.values())
    codes = {number: of.number if numbered else of.code for number, of in recorded.items()}
    code = distinct(np.concatenate([*codes.values()]))
    place = np.full((len(code), len(members)), NONE, np.int64)
    time, steps = np.zeros(place.shape, np.int64), np.zeros(place.shape, np.int64)
    known = np.zeros(place.shape, np.bool_)
    for member, number in enumerate(members):
        if (of := recorded.get(number)) is not None:
            at = np.searchsorted(code, codes[number])
            place[at, member], time[at, member], steps[at, member] = of.place, of.time, of.code // _MOST
    first = np.where(place != NONE, time, np.iinfo(np.int64).max).argmin(axis=1)
    rows = np.arange(len(code))
    came, step = time[rows, first], steps[rows, first]
    for member, number in enumerate(members):
        if (one := answering.get(number)) is not None:
            same_clock = np.array([getattr(answering.get(each), "clock", None) == one.clock for each in members])
            known[:, member] = one.recorded_since(came, same_clock[first]) if numbered else one.recorded_in(step)
            if numbered and number in recorded:  # what its ring has lost, it may have issued
                known[:, member] &= code > recorded[number].number.max(initial=NONE)
    order = np.lexsort((code, step))
    of_step, index = step[order], np.empty_like(step)
    index[order] = np.arange(len(step)) - np.searchsorted(of_step, of_step)
    found = [answering.get(number) for number in members]
    return Operations(
        name, members, step, index, place, time, known,
        [None if one is None else one.rows for one in found], [None if one is None else one.rank for one in found],
    )  # fmt: skip
