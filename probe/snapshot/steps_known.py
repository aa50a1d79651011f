"""What is known of a rank's steps without its rows: a timeline has it, and a host tells it of its ranks.

Used by snapshots and by the notes on a result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

_NONE = (float("nan"),) * 3


class StepsKnown(Protocol):
    """As Timeline says it."""

    @property
    def steps(self) -> bool: ...

    @property
    def completed(self) -> int | None: ...

    @property
    def unsampled(self) -> tuple[int, int]: ...

    @property
    def mean_ns(self) -> tuple[float, float, float]: ...


@dataclass(frozen=True)
class StepsTold:
    """By the host of the rank."""

    steps: bool
    completed: int | None
    unsampled: tuple[int, int]
    mean_ns: tuple[float, float, float]

    @classmethod
    def parse(cls, said: Mapping[str, Any]) -> StepsTold:
        """Of a reply that has been checked.  Raises ValueError for lists of other lengths."""
        missing, of = said["unsampled"]
        sampled, every, error = said["mean_ns"] or _NONE
        return cls(said["steps"], said["completed"], (missing, of), (sampled, every, error))


def told(known: StepsKnown) -> dict[str, Any]:
    """For StepsTold.parse()."""
    unsampled = known.unsampled
    means = known.mean_ns if unsampled[0] else _NONE  # costs more, and nobody asks for it
    has_means = all(each == each for each in means)  # JSON has no NaN
    said = {"steps": known.steps, "completed": known.completed, "unsampled": [*unsampled]}
    return {**said, "mean_ns": [*means] if has_means else None}


def completed_by_all(ranks: Iterable[StepsKnown]) -> int | None:
    """The last step that all of them have completed; None as long as one that has steps has not completed any."""
    lasts = [each.completed for each in ranks if each.steps]
    return None if not lasts or None in lasts else min(last for last in lasts if last is not None)
