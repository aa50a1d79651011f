"""A job measured in short cells: bare, with, with, bare, close enough together that the machine is the same in all.

Half of the cells, by chance, are with, bare, bare, with.  The one invariant: an arm that does nothing could change
names with the bare job, so its ratio lies as often above 1 as below, however the machine wanders.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import fmean, median

from arms import Arm, Job, Times


@dataclass
class Measured:
    """What was seen of one workload: each arm's pairs (with, bare) of the cells, in ns; medians and means of steps."""

    medians: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    means: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    minutes: float = 0.0
    every: int = 0  # of how many blocks our agent samples one, 0: it was not there

    def add(self, arm: str, with_it: Times, bare: Times) -> None:
        self.medians.setdefault(arm, []).append((median(with_it), median(bare)))
        self.means.setdefault(arm, []).append((fmean(with_it), fmean(bare)))

    @property
    def bare_ns(self) -> float:
        return median(bare for pairs in self.medians.values() for _, bare in pairs)


BARE_OUTSIDE = (False, True, True, False)
BARE_INSIDE = (True, False, False, True)


def cell(job: Job, arm: Arm, steps: int, warm: int, order: tuple[bool, ...] = BARE_OUTSIDE) -> tuple[Times, Times]:
    """Two blocks with the arm, and two bare ones close by; order: which of the four have it."""
    times: dict[bool, Times] = {True: [], False: []}
    is_in = False
    for wanted in order:
        if wanted != is_in:
            (arm.put if wanted else arm.take)(job)
        is_in = wanted
        times[wanted] += job.block(steps, warm)
    if is_in:
        arm.take(job)
    return times[True], times[False]


def measured(jobs: dict[bool, Job], arms: dict[str, Arm], steps: int, warm: int, until: Iterator[bool]) -> Measured:
    """Rounds of one cell an arm, in a random order, as long as `until` says so; jobs: with the peer in it, or not."""
    result, order, chance = Measured(), list(arms), random.Random(0)
    begin = time.monotonic()
    for job in jobs.values():
        job.block(steps, 2 * warm)
    for _ in until:
        chance.shuffle(order)
        for name in order:
            which = chance.choice((BARE_OUTSIDE, BARE_INSIDE))
            arm = arms[name]
            result.add(name, *cell(jobs[arm.peer], arm, steps, max(warm, arm.warm), which))
    result.minutes = (time.monotonic() - begin) / 60
    return result


def for_seconds(seconds: float, at_least: int) -> Iterator[bool]:
    """True for that long, and until it has been asked so often."""
    end, asked = time.monotonic() + seconds, 0
    while asked < at_least or time.monotonic() < end:
        asked += 1
        yield True
