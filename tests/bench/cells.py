"""A job measured in short cells: bare, with, with, bare, close enough together that the machine is the same in all.

The one invariant: every block of a cell is as long as the others and reached in the same way, so that an arm that does
nothing has a ratio that lies as often above 1 as below.
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

    def add(self, arm: str, with_it: Times, bare: Times) -> None:
        walls = [[wall for wall, _ in times] for times in (with_it, bare)]
        self.medians.setdefault(arm, []).append((median(walls[0]), median(walls[1])))
        self.means.setdefault(arm, []).append((fmean(walls[0]), fmean(walls[1])))

    @property
    def bare_ns(self) -> float:
        return median(bare for pairs in self.medians.values() for _, bare in pairs)


def cell(job: Job, arm: Arm, steps: int, warm: int) -> tuple[Times, Times]:
    """The steps with the arm, and the bare steps right before and after them."""
    before = job.block(steps, warm)
    arm.put(job)
    with_it = job.block(steps, warm) + job.block(steps, warm)
    arm.take(job)
    return with_it, before + job.block(steps, warm)


def measured(jobs: dict[bool, Job], arms: dict[str, Arm], steps: int, warm: int, until: Iterator[bool]) -> Measured:
    """Rounds of one cell an arm, in a random order, as long as `until` says so; jobs: with the peer in it, or not."""
    result, order, chance = Measured(), list(arms), random.Random(0)
    begin = time.monotonic()
    for job in jobs.values():
        job.block(steps, 2 * warm)
    for _ in until:
        chance.shuffle(order)
        for name in order:
            result.add(name, *cell(jobs[arms[name].peer], arms[name], steps, warm))
    result.minutes = (time.monotonic() - begin) / 60
    return result


def for_seconds(seconds: float, at_least: int) -> Iterator[bool]:
    """True for that long, and until it has been asked so often."""
    end, asked = time.monotonic() + seconds, 0
    while asked < at_least or time.monotonic() < end:
        asked += 1
        yield True
