"""When probe held up the job, by its snippets and attaches: that time says nothing about the job's usual pace.

Collected by looks.py.  Invariant: pure; times are the wall clock's.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise

from ...snapshot.snapshot import Snapshot
from ...snapshot.source import RankLeft

Interval = tuple[int, int]  # begin and end, in ns


class Pauses:
    """Of all ranks together, for a rank that is not held up itself waits for those that are.

    snippets: when they ran; attaches: a moment within each.
    """

    def __init__(self, snippets: Iterable[Interval] = (), attaches: Iterable[int] = ()) -> None:
        merged: list[Interval] = []
        for begin, end in sorted(snippets):
            if merged and begin <= merged[-1][1]:
                merged[-1] = merged[-1][0], max(end, merged[-1][1])
            else:
                merged.append((begin, end))
        self._merged = merged
        self._sums = [0, *accumulate(end - begin for begin, end in merged)]
        self._attaches = sorted(attaches)

    def gaps(self, moments: Sequence[int]) -> list[int]:
        """The time from each of these moments to the next, in ns, without that of snippets; none with an attach in it,
        for it is not known how long that took."""
        pairs = [(begin, end) for begin, end in pairwise(moments) if not self._was_attach(begin, end)]
        return [end - begin - self._of_snippets(begin, end) for begin, end in pairs]

    def _was_attach(self, begin_ns: int, end_ns: int) -> bool:
        return bisect_right(self._attaches, begin_ns) < bisect_right(self._attaches, end_ns)

    def _of_snippets(self, begin_ns: int, end_ns: int) -> int:
        return self._until(end_ns) - self._until(begin_ns)

    def _until(self, moment_ns: int) -> int:
        begun = bisect_right(self._merged, moment_ns, key=lambda interval: interval[0])
        return self._sums[begun] - max(0, self._merged[begun - 1][1] - moment_ns if begun else 0)


def pauses_of(job: Snapshot) -> Pauses:
    """By the logs of the ranks that answer."""
    snippets, attaches = list[Interval](), list[int]()
    for rank in list(job.ranks):
        with contextlib.suppress(RankLeft):
            offset_ns = rank.facts.wall_offset_ns
            attaches.append(rank.facts.attached_ns + offset_ns)
            for record in rank.log.evals_done.values():
                if {"start_ns", "end_ns"} <= record.keys():
                    snippets.append((record["start_ns"] + offset_ns, record["end_ns"] + offset_ns))
    return Pauses(snippets, attaches)
