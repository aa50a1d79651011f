"""Several ranks derived as one: their rows laid one after the other in time, as if one process had been all of them.

Called by probe.query.table_scan where ranks have few rows each: whatever their number, a table costs 2 ms a rank, or
together. A moment, a step and a thread say whose they are here.  Invariant: each rank's rows are those that it has by
itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from ..arrays.arrow import choice, made, nullable
from ..arrays.distinct import distinct, places
from ..arrays.dtypes import Bools, Ints
from ..schema import Column, Columns
from ..snapshot.rows import Rows
from ..snapshot.snapshot import Rank
from ..snapshot.timeline import Timeline
from ..streams import DEVICE, SAMPLED, STEPS
from .derived_cache import WORTH
from .identity_columns import length, with_common
from .lazy_columns import Chunks, LazyColumns, Made

LEAST = 4  # ranks
_MOST = 1 << 17  # rows of all of them: more at once take longer, not less
_LONGEST_NS = 1 << 50  # of a rank's history: two weeks
_APART = 40  # bits of a step
_PAUSE_NS = 1000  # between one rank's time and the next one's
_AHEAD = np.iinfo(np.int64).max


class Unlike(Exception):
    """These ranks did not do the same."""


class Together(Rank):
    """Of `members`, and of no other streams than these; all of them have the same modules and devices."""

    def __init__(self, members: Sequence[Rank], streams: Sequence[str]) -> None:
        first = members[0]
        super().__init__(first.pid, first.facts, {}, first.log)
        self.snapshot, self.members = first.snapshot, members
        tables = {stream: [raw.rows(stream).table for raw in members] for stream in streams}
        tables[STEPS] = [raw.timeline.boundaries.table for raw in members]
        joined = {stream: Rows(self.slots(stream), np.concatenate(each)) for stream, each in tables.items()}
        whose = {stream: np.repeat(np.arange(len(members)), list(map(len, each))) for stream, each in tables.items()}
        self.shift, self._ends = _laid_out(joined, whose, len(members))
        self._threads, natives = zip(*(_threads(raw, streams) for raw in members), strict=True)
        self._natives: list[int | None] = [native for each in natives for native in each]
        for stream, rows in joined.items():
            for slot in rows.slots:
                if slot.endswith("_ns"):
                    rows[slot][:] += self.shift[whose[stream]]
            rows["thread"][:] = self._coded(rows["thread"], whose[stream])
            self._rows[stream] = rows
        self._whose_steps = whose[STEPS]

    def _coded(self, threads: Ints, whose: Ints) -> Ints:
        """Numbers that no other rank's threads have, small ones."""
        bounds = np.searchsorted(whose, np.arange(len(self.members) + 1))
        first, codes = 0, np.zeros(len(threads), np.int64)
        for known, low, high in zip(self._threads, bounds, bounds[1:], strict=False):
            codes[low:high] = first if len(known) == 1 else first + np.searchsorted(known, threads[low:high])
            first += len(known)
        return codes

    def rows(self, stream: str) -> Rows:
        return self._rows[stream]

    @cached_property
    def timeline(self) -> Timeline:
        return _Timeline(self, self._boundaries())

    def _boundaries(self) -> Rows:
        """Of each rank, and one more at its end: what is behind its last boundary is in a step of its own."""
        rows, whose = self._rows[STEPS], self._whose_steps
        last = np.searchsorted(whose, np.arange(len(self.members)), side="right") - 1
        ends = rows.of(last)
        ends["time_ns"][:], ends["thread"][:], ends["flags"][:] = self._ends, -1, SAMPLED
        ends["count"][:] += 1
        order = np.argsort(np.append(whose, np.arange(len(self.members))), kind="stable")
        found = Rows(rows.slots, np.concatenate([rows.table, ends.table])[order])
        base = np.array([raw.timeline.base for raw in self.members])
        owner = np.append(whose, np.arange(len(self.members)))[order]
        found["count"][:] += base[owner] + (owner + 1 << _APART)
        return found

    def run_of(self, times_ns: Ints) -> Ints:
        found: Ints = np.minimum(np.searchsorted(self._ends, times_ns), len(self.members) - 1)
        return found

    def agree(self, times_ns: Ints, seen: Ints) -> None:
        """Raises Unlike: there is one tree of modules here, and one device a module."""
        known = distinct(seen)
        if len(distinct(self.run_of(times_ns) * len(known) + places(seen, known))) < len(known) * len(self.members):
            raise Unlike

    def native_threads(self, threads: Ints) -> Any:
        known = np.array([native is not None for native in self._natives])
        return nullable(np.array([native or 0 for native in self._natives], np.int64)[threads], known[threads])

    def told_apart(self, values: Columns) -> Columns:
        """What was derived of this, as the rows of its members, with what all tables have of their ranks."""
        whose = owner_of(values["step"])
        step = values["step"] - (whose + 1 << _APART)

        def start() -> Ints:
            return made(values["start_ns"]) - self.shift[whose]  # type: ignore[no-any-return]

        def each(of: str) -> Ints:
            return np.array([getattr(raw, of) for raw in self.members], np.int64)[whose]

        def host() -> Any:
            names = list(dict.fromkeys(raw.host for raw in self.members))
            return choice(np.array([names.index(raw.host) for raw in self.members])[whose], names)

        def time() -> Any:
            offset = np.array([int(raw.facts["wall_ns"]) - int(raw.facts["monotonic_ns"]) for raw in self.members])
            return pa.array((start() + offset[whose]) // 1000).cast(pa.timestamp("us"))

        common = {"rank": lambda: each("rank"), "host": host, "pid": lambda: each("pid"), "time": time}
        return {**common, **values, "start_ns": start, "step": step}


def _laid_out(joined: dict[str, Rows], whose: dict[str, Ints], ranks: int) -> tuple[Ints, Ints]:
    """How far each rank's time is moved, and where it then ends."""
    begin, end = np.full(ranks, _AHEAD), np.full(ranks, -_AHEAD)
    for stream, rows in joined.items():
        for slot in rows.slots:
            if slot.endswith("_ns") and len(rows):
                np.minimum.at(begin, whose[stream], rows[slot])
                np.maximum.at(end, whose[stream], rows[slot])
    ends = np.cumsum(end - begin + _PAUSE_NS)
    return ends - _PAUSE_NS // 2 - end, ends


def _threads(raw: Rank, streams: Sequence[str]) -> tuple[Ints, list[int | None]]:
    """Its threads, rising, and their native ids."""
    known = distinct(np.concatenate([distinct(raw.rows(stream)["thread"]) for stream in {*streams, STEPS}]))
    return known, [raw.log.threads.get(ident, {}).get("native_id") for ident in known.tolist()]


def owner_of(steps: Ints) -> Ints:
    """The place among the members of the rank whose steps these are."""
    found: Ints = (steps + (1 << _APART - 1) >> _APART) - 1
    return found


class _Timeline(Timeline):
    """Steps bear the place of their rank."""

    def __init__(self, raw: Together, boundaries: Rows) -> None:
        self._raw, self._members = raw, [member.timeline for member in raw.members]
        self.base, self.incomplete, self.boundaries = 0, 1, boundaries
        self._ends = np.ascontiguousarray(boundaries["time_ns"])
        self._counts = np.ascontiguousarray(boundaries["count"])
        self._flags = np.ascontiguousarray(boundaries["flags"])

    def finished(self, steps: Ints) -> Bools:
        return self._by_rank(steps, [timeline.unfinished for timeline in self._members], np.less)

    def visible(self, steps: Ints, streams: tuple[str, ...] = ()) -> Bools:
        whole = self._by_rank(steps, [timeline.oldest(streams) for timeline in self._members], np.greater_equal)
        last = [_AHEAD if timeline.stuck else self._raw.snapshot.completed for timeline in self._members]
        return whole & self._by_rank(steps, last, np.less_equal)

    def _by_rank(self, steps: Ints, bounds: Sequence[Any], compare: Any) -> Bools:
        whose = owner_of(steps)
        result: Bools = compare(steps - (whose + 1 << _APART), np.array(bounds, np.int64)[whose])
        return result


class Group:
    """One piece of the rows of several ranks."""

    def __init__(self, members: Sequence[Rank], streams: Sequence[str], derive: Callable[[Rank], Columns]) -> None:
        self._members, self._streams, self._derive = members, streams, derive
        self.piece = Made(self.make)
        self.shares = [Share(self, place) for place in range(len(members))]
        self._whose: Ints = np.zeros(0, np.int64)

    def make(self, columns: Sequence[Column]) -> Chunks:
        raw = Together(self._members, self._streams)
        try:
            values = self._derive(raw)
        except Unlike:
            return self._make_each(columns)
        self._whose = owner_of(values["step"])
        piece = LazyColumns(raw.told_apart(values))
        return {column.name: piece.chunks(column) for column in columns}

    def _make_each(self, columns: Sequence[Column]) -> Chunks:
        values = [with_common(raw, self._derive(raw)) for raw in self._members]
        self._whose = np.repeat(np.arange(len(values)), list(map(length, values)))
        pieces = list(map(LazyColumns, values))
        return {column.name: [chunk for piece in pieces for chunk in piece.chunks(column)] for column in columns}

    def rows_of(self, place: int) -> Ints:
        """Once something has been made."""
        return np.flatnonzero(self._whose == place)


class Share(LazyColumns):
    """What one rank has in it."""

    def __init__(self, group: Group, place: int) -> None:
        super().__init__({})
        self.group, self._place = group, place

    def have(self, columns: Sequence[Column]) -> None:
        self.group.piece.have(columns)

    def _make(self, column: Column) -> list[Any]:
        self.have([column])
        return self.group.piece.of(self.group.rows_of(self._place)).chunks(column)


def groups_of(raws: Sequence[Rank], streams: Sequence[str]) -> Iterator[list[Rank]]:
    """Ranks that may be taken together; of the others nothing is said."""
    alike: dict[Any, list[Rank]] = {}
    for raw in raws if len(raws) >= LEAST else ():
        if _is_simple(raw, streams):
            alike.setdefault(_key(raw, streams), []).append(raw)
    for group in alike.values():
        size, members = 0, list[Rank]()
        for raw in group:
            members.append(raw)
            size += _size(raw, streams)
            if size >= _MOST:
                yield members
                size, members = 0, []
        if len(members) >= LEAST:
            yield members


def _is_simple(raw: Rank, streams: Sequence[str]) -> bool:
    """Whether it has few rows, in a time that is possible, and steps."""
    timeline, rows = raw.timeline, [raw.rows(stream) for stream in streams]
    if not timeline.incomplete or not timeline.steps or not len(timeline.boundaries):
        return False
    if _size(raw, streams) >= WORTH or abs(timeline.base) >> _APART - 2:
        return False
    times = [table[:, place] for table, place in _times([timeline.boundaries, *rows])]
    least, most = min(int(each.min()) for each in times), max(int(each.max()) for each in times)
    counts = timeline.boundaries["count"]
    return least >= 0 and most - least < _LONGEST_NS and 0 <= int(counts[0]) <= int(counts[-1]) < 1 << _APART - 2


def _size(raw: Rank, streams: Sequence[str]) -> int:
    return len(raw.timeline.boundaries) + sum(len(raw.rows(stream)) for stream in streams)


def _times(rows: Sequence[Rows]) -> Iterator[tuple[Ints, int]]:
    for each in rows:
        if len(each):
            yield from ((each.table, place) for place, slot in enumerate(each.slots) if slot.endswith("_ns"))


def _key(raw: Rank, streams: Sequence[str]) -> Any:
    """Equal for ranks whose modules are the same: what ranks say alike is read once, so records are the very same."""
    told = (raw.log.modules, raw.log.optimizers)
    records = tuple((number, id(record)) for objects in told for number, record in sorted(objects.items()))
    devices = tuple(distinct(raw.rows(DEVICE)["device"]).tolist()) if DEVICE in streams else ()
    slots = tuple(raw.slots(stream) for stream in (*streams, STEPS))
    return (raw.rank if len(devices) > 1 else None), records, devices, slots, raw.has(DEVICE)
