"""Several ranks as one partition: their rows follow one another in time, as if one process had done all of it.

Called by probe.query.table_scan where ranks have few rows each: deriving a table makes some 250 calls of numpy, 2 ms,
whether for one rank or for a batch of them.  Invariant: each rank's rows are those that it has by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..arrays.integers import Ints, distinct
from ..derive.blocking import collectives_alike, settled
from ..derive.partition import STEP_BITS, Disagreement, Layout, Partition
from ..snapshot.rows import Rows
from ..snapshot.timeline import Timeline
from ..streams import COLLECTIVES, DEVICE, SAMPLED, STEPS, TIMES
from .derived_cache import WORTH_CACHING
from .lazy_columns import Derive, LazyColumns, derived, derived_each

MIN_RANKS = 4
_MAX_ROWS = 1 << 17  # of all of them; more at once take longer, not less
_MAX_NS = 1 << 50  # of a rank's history: two weeks
_PAUSE_NS = 1000  # between one rank's time and the next one's
_FAR = np.iinfo(np.int64).max


def derived_together(parts: Sequence[Partition], streams: Sequence[str], derive: Derive) -> list[LazyColumns]:
    """The rows of a batch; of each rank by itself where the ranks disagree."""
    try:
        return [derived(batch_of(parts, streams), derive)]
    except Disagreement:
        return derived_each(parts, derive)


def batch_of(parts: Sequence[Partition], streams: Sequence[str]) -> Partition:
    """These ranks, which batches_of() found alike, in one partition with these streams.  Copies their rows."""
    rank = parts[0].rank
    tables = {stream: [_rows(part, stream).table for part in parts] for stream in streams}
    tables[STEPS] = [part.timeline.boundaries.table for part in parts]
    rows = {stream: Rows(rank.slots(stream), np.concatenate(each)) for stream, each in tables.items()}
    owner = {stream: np.repeat(np.arange(len(parts)), list(map(len, each))) for stream, each in tables.items()}
    shift, end = _lay_out(rows, owner, len(parts))
    known = [distinct(np.concatenate([distinct(each[place][:, rows[stream].slots.index("thread")])
                                      for stream, each in tables.items()])) for place in range(len(parts))]  # fmt: skip
    for stream, joined in rows.items():
        for slot in TIMES[stream]:
            joined[slot][:] += shift[owner[stream]]
        joined["thread"][:] = _renumbered(joined["thread"], owner[stream], known)
    native_ids = [
        part.log.threads.get(ident, {}).get("native_id")
        for part, of_rank in zip(parts, known, strict=True)
        for ident in of_rank.tolist()
    ]
    rows[STEPS] = _boundaries(rows[STEPS], owner[STEPS], end, np.array([part.timeline.base for part in parts]))
    timeline = Timeline(rank, rows.__getitem__, base=0)
    return Partition(rank, rows.__getitem__, timeline, layout=Layout(parts, shift, end, native_ids))


def _rows(part: Partition, stream: str) -> Rows:
    """With times in all slots that hold times, so that they may be shifted."""
    return settled(part) if stream == COLLECTIVES else part.rows(stream)


def _lay_out(rows: dict[str, Rows], owner: dict[str, Ints], ranks: int) -> tuple[Ints, Ints]:
    """How far each rank's times move, and where they then end."""
    begin, end = np.full(ranks, _FAR), np.full(ranks, -_FAR)
    for stream, joined in rows.items():
        for slot in TIMES[stream] if len(joined) else ():
            np.minimum.at(begin, owner[stream], joined[slot])
            np.maximum.at(end, owner[stream], joined[slot])
    ends = np.cumsum(end - begin + _PAUSE_NS)
    return ends - _PAUSE_NS // 2 - end, ends


def _renumbered(threads: Ints, owner: Ints, known: Sequence[Ints]) -> Ints:
    """Small numbers that no two ranks share: a thread's place among the known ones of all ranks."""
    bounds = np.searchsorted(owner, np.arange(len(known) + 1))
    first, codes = 0, np.zeros(len(threads), np.int64)
    for of_rank, low, high in zip(known, bounds, bounds[1:], strict=False):
        codes[low:high] = first if len(of_rank) == 1 else first + np.searchsorted(of_rank, threads[low:high])
        first += len(of_rank)
    return codes


def _boundaries(rows: Rows, owner: Ints, end: Ints, base: Ints) -> Rows:
    """The steps' ends of all ranks, and one more for each: what follows its last boundary is in a step of its own."""
    last = np.searchsorted(owner, np.arange(len(end)), side="right") - 1
    ends = rows.of(last)
    ends["time_ns"][:], ends["thread"][:], ends["flags"][:] = end, -1, SAMPLED
    ends["count"][:] += 1
    owner = np.append(owner, np.arange(len(end)))
    order = np.argsort(owner, kind="stable")
    found = Rows(rows.slots, np.concatenate([rows.table, ends.table])[order])
    found["count"][:] += base[owner[order]] + (owner[order] + 1 << STEP_BITS)
    return found


def batches_of(parts: Sequence[Partition], streams: Sequence[str]) -> Iterator[list[Partition]]:
    """The ranks that can share a partition, batch by batch; ranks in none of them are to be derived by themselves."""
    alike: dict[Any, list[Partition]] = {}
    for part in parts if len(parts) >= MIN_RANKS else ():
        if _fits(part, streams):
            alike.setdefault(_key(part, streams), []).append(part)
    for candidates in alike.values():
        size, batch = 0, list[Partition]()
        for part in candidates:
            batch.append(part)
            size += _size(part, streams)
            if size >= _MAX_ROWS:
                yield batch
                size, batch = 0, []
        if len(batch) >= MIN_RANKS:
            yield batch


def _fits(part: Partition, streams: Sequence[str]) -> bool:
    """Whether the rank has steps and few rows, and its times and steps leave room for those of others."""
    timeline = part.timeline
    if not timeline.incomplete or not timeline.steps or not len(timeline.boundaries):
        return False
    if _size(part, streams) >= WORTH_CACHING or abs(timeline.base) >> STEP_BITS - 2:
        return False
    rows = {**{stream: _rows(part, stream) for stream in streams}, STEPS: timeline.boundaries}
    times = [of[slot] for stream, of in rows.items() if len(of) for slot in TIMES[stream]]
    least, most = min(int(each.min()) for each in times), max(int(each.max()) for each in times)
    counts = timeline.boundaries["count"]
    return least >= 0 and most - least < _MAX_NS and 0 <= int(counts[0]) <= int(counts[-1]) < 1 << STEP_BITS - 2


def _size(part: Partition, streams: Sequence[str]) -> int:
    return len(part.timeline.boundaries) + sum(len(part.rows(stream)) for stream in streams)


def _key(part: Partition, streams: Sequence[str]) -> Any:
    """Equal for ranks with the same modules: a record that several ranks' logs share is decoded once, so it is the very
    same object."""
    rank = part.rank
    records = tuple(
        (number, id(record))
        for objects in (rank.log.modules, rank.log.optimizers)
        for number, record in sorted(objects.items())
    )
    devices = tuple(distinct(part.rows(DEVICE)["device"]).tolist()) if DEVICE in streams else ()
    slots = tuple(rank.slots(stream) for stream in (*streams, STEPS))
    groups = collectives_alike(rank.log) if COLLECTIVES in streams else ()
    return (rank.rank if len(devices) > 1 else None), records, devices, slots, DEVICE in rank.facts.streams, groups
