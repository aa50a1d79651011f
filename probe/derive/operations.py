"""Operations of a group over all its ranks: which rows are the same operation, and when each rank arrived.

Called by probe.collectives.  The n-th operation that a rank issues on a group within a step is the n-th of every
other rank, since ranks issue the same ones in the same order or hang; what backends count is not the same
everywhere.  Invariant: a rank is said to lack an operation only where that is certain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..arrays.integers import NONE, Bools, Ints, distinct
from ..snapshot.rows import Rows
from ..snapshot.snapshot import Snapshot
from ..snapshot.source import Rank, RankLeft
from ..streams import BARE, COLLECTIVES

PAIRWISE = ("c10d::send", "c10d::recv_", "c10d::recv_any_source_")
_MOST = 1 << 24  # operations of one step
Key = tuple[str, tuple[int, ...]]


@dataclass(frozen=True)
class Operations:
    """Those of one group: arrays over operations, or over (operation, member).

    place: row of the member's table, NONE where it has none; time: of the arrival, in ns of one clock for all;
    known: whether the member would have a row if it had arrived.
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
    """The collective operations of one rank on one group."""

    place: Ints  # rows of the group
    code: Ints  # step and index of each
    time: Ints


def operations_of(job: Snapshot) -> Iterator[Operations]:
    """For each group whose members are known, the operations of every step that any rank recorded."""
    clocks: dict[str, int] = {}  # one offset for each kernel, whose ranks then do not differ by readings of the clock
    found: dict[Key, dict[int, _OfRank]] = {}
    answering: dict[int, Rank] = {}
    for rank in list(job.ranks):
        try:
            rows = rank.rows(COLLECTIVES)
        except RankLeft:
            continue
        answering[rank.rank] = rank
        clock = clocks.setdefault(rank.facts.boot_id or rank.host, rank.facts.wall_offset_ns)
        for key, place in _by_group(rank, rows):
            found.setdefault(key, {})[rank.rank] = _of_rank(rank, rows, place, clock)
    for (name, members), ranks in sorted(found.items()):
        yield _of_group(name, members, ranks, answering)


def _by_group(rank: Rank, rows: Rows) -> Iterator[tuple[Key, Ints]]:
    """Places of each group's rows, without operations between two ranks."""
    pairwise = [id for id, name in rank.log.strings.items() if name in PAIRWISE]
    place = np.flatnonzero(~np.isin(rows["operation"], pairwise))
    groups = rows["group"][place]
    ids: dict[Key, list[int]] = {}
    for id in distinct(groups).tolist():
        group = rank.log.groups.get(id, {})
        if group.get("ranks"):
            ids.setdefault((str(group.get("name")), tuple(group["ranks"])), []).append(id)
    for key, mine in ids.items():
        yield key, place[np.isin(groups, mine)]


def _of_rank(rank: Rank, rows: Rows, place: Ints, clock: int) -> _OfRank:
    start = rows["start_ns"][place]
    step = rank.timeline.step(start)
    order = np.lexsort((rows["seq"][place], step))
    place, step = place[order], step[order]
    first = np.searchsorted(step, step)
    kept = step >= _first_whole(rank, rows)
    code = step * _MOST + np.arange(len(step)) - first
    return _OfRank(place[kept], code[kept], (rows["start_ns"][place] + clock)[kept])


def _first_whole(rank: Rank, rows: Rows) -> int:
    """The first step whose operations the rank has recorded completely: after the attach and the tap's installation."""
    first = rank.timeline.oldest(()) if rank.timeline.steps else rank.timeline.base
    since = rank.facts.collectives_ns
    if since is not None and rank.timeline.steps:
        first = max(first, int(rank.timeline.step(np.array([since]))[0]) + 1)
    overwritten = len(rows) > 0 and int(rows["seq"][0]) > 1
    return max(first, int(rank.timeline.step(rows["start_ns"][:1])[0]) + 1) if overwritten else first


def _of_group(
    name: str, members: tuple[int, ...], recorded: dict[int, _OfRank], answering: dict[int, Rank]
) -> Operations:
    code = distinct(np.concatenate([of.code for of in recorded.values()]))
    step = code // _MOST
    place = np.full((len(code), len(members)), NONE, np.int64)
    time = np.zeros(place.shape, np.int64)
    known = np.zeros(place.shape, np.bool_)
    for member, number in enumerate(members):
        if number in recorded:
            at = np.searchsorted(code, recorded[number].code)
            place[at, member], time[at, member] = recorded[number].place, recorded[number].time
        if (rank := answering.get(number)) is not None and rank.facts.taps.get("collectives", "on") == "on":
            # it recorded every operation that it issued in these steps
            whole = step >= _first_whole(rank, rank.rows(COLLECTIVES))
            known[:, member] = whole & ((rank.timeline.flags(step) & BARE) == 0)
    ranks = [answering.get(number) for number in members]
    rows = [None if rank is None else rank.rows(COLLECTIVES) for rank in ranks]
    return Operations(name, members, step, code % _MOST, place, time, known, rows, ranks)
