"""How often the training comes to a function, for how long, and what part of the time that is.

Made by rules of what places.py gives.  Invariant: all figures are of one rank, the one that it costs most.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import mean, median

from ..figures import ms
from ..ratio import ratio, sure_above
from ..watched import BLOCK, LEAST_BLOCKS
from .places import Places

_CHANCE = 0.2  # of the usual spell: what is so much shorter is the function in passing, not a spell
_AT_ONE_DISTANCE = 0.75  # of the distances, of a function that comes at regular ones
_SEEN_S = 0.025  # two or three samples: a shorter spell is not seen in each step in which it is


@dataclass(frozen=True)
class Spells:
    """rank: where; seconds: time in the function by step; share: of the rank's time, 0 to 1."""

    rank: int
    seconds: Mapping[int, float]
    share: float
    _by_step: Mapping[int, tuple[float, float]]  # time in the function, and time altogether

    @property
    def count(self) -> int:
        return len(self.seconds)

    @property
    def looked_at(self) -> int:
        """In how many steps the rank was looked at; of short steps not in all."""
        return len(self._by_step)

    @property
    def each_s(self) -> float:
        """How long one takes, on the average."""
        return mean(self.seconds.values())

    @property
    def are_seen(self) -> bool:
        """Whether they are so long that the profile has seen each of them."""
        return self.each_s >= _SEEN_S

    @cached_property
    def every(self) -> int | None:
        """At which distance they come, in steps; None if at no regular one, or if that cannot be told."""
        steps = sorted(self.seconds)
        distances = [after - before for before, after in pairwise(steps)]
        if len(distances) < 2 or not self.are_seen:
            return None
        usual = round(median(distances))
        slack = max(1.0, 0.1 * usual) if usual > 2 else 0.0
        near = [abs(distance - usual * max(1, round(distance / usual))) <= slack for distance in distances]
        return usual if mean(near) >= _AT_ONE_DISTANCE else None

    def sure(self, threshold: float) -> float | None:
        """How sure it is that the share exceeds this; None if too little was seen."""
        size = max(BLOCK, self.every or 0)
        blocks = [step // size for step in self._by_step]
        if len(set(blocks)) < LEAST_BLOCKS:
            return None
        parts, wholes = zip(*self._by_step.values(), strict=True)
        return sure_above(*ratio(blocks, parts, wholes), threshold)

    def __str__(self) -> str:
        """`420 ms every 5 steps`, `420 ms in 7 of 150 steps`."""
        if self.every is not None:
            return f"{ms(self.each_s)} {'in each step' if self.every == 1 else f'every {self.every} steps'}"
        return f"{ms(self.each_s)} in {self.count} of {self.looked_at} steps"


def spells(everything: Places, found: Places) -> Spells | None:
    """Of a part of what was seen; None if it is none."""
    if not found.stacks:
        return None
    by_rank: dict[int, float] = {}
    for stack in found.stacks:
        by_rank[stack.rank] = by_rank.get(stack.rank, 0.0) + stack.seconds
    rank = max(by_rank, key=lambda each: by_rank[each])
    whole, seconds = _by_step(everything, rank), _by_step(found, rank)
    usual = sum(each**2 for each in seconds.values()) / sum(seconds.values())
    return Spells(
        rank,
        {step: each for step, each in seconds.items() if each >= _CHANCE * usual},
        by_rank[rank] / sum(whole.values()),
        {step: (seconds.get(step, 0.0), each) for step, each in whole.items()},
    )


def _by_step(places: Places, rank: int) -> dict[int, float]:
    seconds: dict[int, float] = {}
    for stack in places.stacks:
        if stack.rank == rank:
            seconds[stack.step] = seconds.get(stack.step, 0.0) + stack.seconds
    return seconds
