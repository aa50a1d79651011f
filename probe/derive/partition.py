"""Raw rows that a table derives its own rows from: those of a rank, of a block of its steps, or of several ranks.

Made by the query, which decides how to partition a job, and passed to every table's derive().  Invariant: a table has
the same rows, whatever the partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arrays.arrow import nullable
from ..arrays.integers import Bools, Ints, distinct, places
from ..snapshot.log import Log
from ..snapshot.rows import Rows
from ..snapshot.source import Rank
from ..snapshot.timeline import Timeline
from ..streams import SAMPLED

STEP_BITS = 40  # of a step of several ranks; the bits above it say which rank's it is
_FAR = np.iinfo(np.int64).max


class Disagreement(Exception):
    """The ranks of a partition differ in what it holds only once; they have to be derived one by one."""


@dataclass(frozen=True)
class Layout:
    """How several ranks share a partition: their times follow one another, their steps and threads do not overlap.

    shift_ns: what was added to the times of each rank; end_ns: when each rank's part ends; native_ids: by thread.
    """

    parts: Sequence[Partition]
    shift_ns: Ints
    end_ns: Ints
    native_ids: Sequence[int | None]

    def split(self, steps: Ints) -> tuple[Ints, Ints]:
        """The place of each step's rank in `parts`, and the step as that rank counts it."""
        owner: Ints = (steps + (1 << STEP_BITS - 1) >> STEP_BITS) - 1
        return owner, steps - (owner + 1 << STEP_BITS)


@dataclass(frozen=True)
class Partition:
    """What a table may ask for.

    rank: its log, facts and clock; of several ranks the first, with whose log and facts the others' agree.  rows: of a
    stream.  timeline: of those rows.  steps: if given, only the derived rows of these steps count.
    """

    rank: Rank
    rows: Callable[[str], Rows]
    timeline: Timeline
    steps: range | None = None
    layout: Layout | None = None

    @classmethod
    def of(cls, rank: Rank) -> Partition:
        """All rows of a rank.  Raises RankLeft."""
        return cls(rank, rank.rows, rank.timeline)

    @property
    def log(self) -> Log:
        return self.rank.log

    def owner(self, times_ns: Ints) -> Ints:
        """The place among the partition's ranks of the one that each moment belongs to."""
        if self.layout is None:
            return np.zeros(len(times_ns), np.int64)
        return np.minimum(np.searchsorted(self.layout.end_ns, times_ns), len(self.layout.end_ns) - 1)

    def require_agreement(self, times_ns: Ints, values: Ints) -> None:
        """Raises Disagreement unless every rank has each of these values at one of its moments."""
        if self.layout is None:
            return
        known = distinct(values)
        pairs = distinct(self.owner(times_ns) * len(known) + places(values, known))
        if len(pairs) < len(known) * len(self.layout.parts):
            raise Disagreement

    def sampled(self, steps: Ints, streams: tuple[str, ...]) -> Bools:
        """Which of these steps were sampled and may be seen, all rows of a step from these streams or none.

        Sums over a step that lacks its forwards would not be true.  A block of sampled steps that has only begun is not
        seen: "the last ten steps" would be two or three.
        """
        timeline = self.timeline
        sampled: Bools = (timeline.flags(steps) & SAMPLED) != 0
        if self.layout is None:
            sampled &= timeline.visible(steps, streams)
            return sampled if self.rank.snapshot.open_steps else sampled & (steps < timeline.unfinished)
        owner, own = self.layout.split(steps)
        timelines, completed = [part.timeline for part in self.layout.parts], self.rank.snapshot.completed
        first = np.array([timeline.oldest(streams) for timeline in timelines])
        last = np.array([_FAR if timeline.stuck else completed for timeline in timelines])
        upto = np.array([timeline.unfinished for timeline in timelines])
        return sampled & (own >= first[owner]) & (own <= last[owner]) & (own < upto[owner])

    def native_threads(self, threads: Ints) -> Any:
        """Native thread ids, NULL where the log does not know the thread."""
        known, layout = distinct(threads), self.layout
        natives = [
            self.log.threads.get(thread, {}).get("native_id") if layout is None else layout.native_ids[thread]
            for thread in known.tolist()
        ]
        ids = np.array([native or 0 for native in natives], np.int64)[places(threads, known)]
        return nullable(ids, ids != 0)
