"""When snippets ran in the job: time in which it did not move, and which says nothing about its usual pace.

Collected by looks.py.  Invariant: pure; times are the wall clock's.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate

from ...snapshot.snapshot import Snapshot
from ...snapshot.source import RankLeft

Interval = tuple[int, int]  # begin and end, in ns


class SnippetTime:
    """Of all ranks together, for a rank that runs none waits for those that do."""

    def __init__(self, intervals: Iterable[Interval] = ()) -> None:
        merged: list[Interval] = []
        for begin, end in sorted(intervals):
            if merged and begin <= merged[-1][1]:
                merged[-1] = merged[-1][0], max(end, merged[-1][1])
            else:
                merged.append((begin, end))
        self._merged = merged
        self._sums = [0, *accumulate(end - begin for begin, end in merged)]

    def between(self, begin_ns: int, end_ns: int) -> int:
        """How long a snippet ran between these two moments, in ns."""
        return self._until(end_ns) - self._until(begin_ns)

    def _until(self, moment_ns: int) -> int:
        begun = bisect_right(self._merged, moment_ns, key=lambda interval: interval[0])
        return self._sums[begun] - max(0, self._merged[begun - 1][1] - moment_ns if begun else 0)


def snippet_time(job: Snapshot) -> SnippetTime:
    """By the logs of the ranks that answer."""
    return SnippetTime(_intervals(job))


def _intervals(job: Snapshot) -> Iterator[Interval]:
    for rank in list(job.ranks):
        with contextlib.suppress(RankLeft):
            offset_ns = rank.facts.wall_offset_ns
            for record in rank.log.evals_done.values():
                if {"start_ns", "end_ns"} <= record.keys():
                    yield record["start_ns"] + offset_ns, record["end_ns"] + offset_ns
