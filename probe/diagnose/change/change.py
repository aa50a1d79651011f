"""What a change brought: the steps before the last eval that changed something, compared with those after it.

Called by `probe why --since-change`, on the tables as a user would query them.  A step's time is the mean over its
ranks.  Invariant: no step counts in which an eval held the job, nor any before the previous change was in effect or
after the next one was made.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...errors import SilentError
from ..rule import Tables
from .blocks import LEAST_STEPS, Values, means, medians, rates
from .changes_made import Changes, Made, epochs
from .report import Change, Measure, digits
from .steps import PHASES, Steps, alike, filled, settling, steps_of, whole

MOST_STEPS = 1000  # on each side: near the change, so that what else changes in a job matters little
_SHORT_EPOCH = 200  # steps; what the start of a longer one takes is little beside its steps
Window = tuple[tuple[int, int], tuple[int, int]]


def change(tables: Tables, at_step: int | None) -> Change:
    """What the last eval that changed something brought, or what happened at `at_step`.

    Raises SilentError: no-change, not-in-effect (a loader's, whose next epoch has not begun), few-steps.
    Cost: some six queries, and 0.3 s to compare 1,000 steps with as many.
    """
    changes = Changes(tables)
    made = changes.last() if at_step is None else changes.at(at_step)
    if made is None:
        hint = f"Name the step of the change: probe {tables.endpoint} why --since-change --at STEP"
        raise SilentError("No eval since the attach has changed anything.", hint, "no-change")
    again = f"Then: probe {tables.endpoint} why --since-change" + (f" --at {at_step}" if at_step is not None else "")
    if made.effect is None:
        text = f"The change at step {made.last:,} takes effect with the next epoch of {', '.join(made.loaders)}, which "
        raise SilentError(text + "has not begun.", again, "not-in-effect")
    window = _window(tables, changes, made, made.effect)
    before, after = whole(*(steps_of(tables, *each) for each in window))
    notes: list[str] = []
    if made.loaders and len(after["step"]):
        after, notes = _whole_epochs(tables, made.loaders, made.effect, window[1][0], after, again)
    return _compared(made, window, before, after, again, notes)


def _window(tables: Tables, changes: Changes, made: Made, effect: int) -> Window:
    """(first, last) step of either side."""
    earlier, later = changes.before(made), changes.step_after(made)
    previous = -1 if earlier is None else earlier.step_before(made.first)
    start = effect + 1 + (_queue(tables, made.loaders, effect) if made.loaders else 0)
    end = start + MOST_STEPS if later is None else min(later, start + MOST_STEPS)
    return (max(previous + 1, made.first - MOST_STEPS), made.first - 1), (start, end - 1)


def _queue(tables: Tables, loaders: Sequence[str], effect: int) -> int:
    """How many batches new workers make in advance: until these are taken, steps are not what they will be."""
    sql = "SELECT loader, MAX(num_workers * prefetch_factor) AS queue FROM python.dataloader_trace "
    rows = tables.query(f"{sql} WHERE step BETWEEN {effect} AND {effect + 1} GROUP BY loader")
    return max((row["queue"] or 0 for row in rows if row["loader"] in loaders), default=0)


def _whole_epochs(
    tables: Tables, loaders: Sequence[str], effect: int, start: int, after: Steps, again: str
) -> tuple[Steps, list[str]]:
    """(of the steps from `start` on as many as so many whole epochs have, notes): at the start of each, the training
    waits for the first batch.  Raises SilentError until a short epoch is over."""
    rows = epochs(tables, loaders)
    starts, last = [row["step"] for row in rows if row["rank"] == rows[0]["rank"]], after["step"][-1]
    over = [each + start - effect for each in starts if effect < each <= last + 1 - (start - effect)]
    if over:
        return {name: values[after["step"] < over[-1]] for name, values in after.items()}, []
    epoch = effect - max((each for each in starts if each < effect), default=effect)
    if 0 < epoch <= _SHORT_EPOCH:
        text = f"No epoch has ended since the change took effect at step {effect:,}; the one before had {epoch} steps."
        raise SilentError(text, again, "few-steps")
    return after, ["No epoch has ended since the change: what the start of one takes is not in it."]


def _compared(made: Made, window: Window, before: Steps, after: Steps, again: str, more: list[str]) -> Change:
    (first, _), (start, _) = window
    effect = made.last if made.effect is None else made.effect
    settled = [settling(side["duration"]) for side in (before, after)]
    sides = [{name: each[count:] for name, each in side.items()}
             for side, count in zip((before, after), settled, strict=True)]  # fmt: skip
    _require(made, first, start, sides, again)
    ((old,), (new,)), notes = alike(sides[:1], sides[1:])
    chosen = [old, new]
    seconds = [side["duration"][mine] for side, mine in zip(sides, chosen, strict=True)]
    counts = len(seconds[0]), len(seconds[1])
    return Change(
        made.last, "; ".join(made.codes), list(made.changed), list(made.loaders), effect, start,
        (settled[0], settled[1]), *counts,
        Measure.of("step", "s", counts, means(*seconds)),
        Measure.of("median step", "s", counts, medians(*seconds)),
        _samples([filled(side["samples"])[mine] for side, mine in zip(sides, chosen, strict=True)], seconds, counts),
        [_phase(phase, *(side[phase] for side in sides)) for phase in PHASES],
        [*notes, *more],
    )  # fmt: skip


def _require(made: Made, first: int, start: int, sides: list[Steps], again: str) -> None:
    """Raises SilentError unless both sides have enough steps."""
    before, after = (side["duration"] for side in sides)
    if (more := LEAST_STEPS - len(before)) > 0:
        raise SilentError(
            f"Of steps {first:,} to {made.first - 1:,}, before the change, {len(before)} can be compared; "
            f"{LEAST_STEPS} are needed.",
            f"Take the change back, and make it again at least {more} steps later.", "few-steps",
        )  # fmt: skip
    if (more := LEAST_STEPS - len(after)) > 0:
        wait_s = more * float(np.median(after if len(after) else before))
        raise SilentError(
            f"Of the steps from {start:,} on, after the change, {len(after)} can be compared so far; {LEAST_STEPS} are "
            f"needed: {more} more, in about {digits(wait_s)} s.", again, "few-steps",
        )  # fmt: skip


def _samples(samples: list[Values], seconds: list[Values], counts: tuple[int, int]) -> Measure | None:
    """Samples per second over all ranks."""
    if any(np.isnan(each).any() for each in samples):
        return None
    before, after = zip(seconds, samples, strict=True)
    return Measure.of("samples", "1/s", counts, rates(before, after))


def _phase(name: str, *sides: Values) -> Measure:
    before, after = (each[~np.isnan(each)] for each in sides)
    counts = len(before), len(after)
    if min(counts) < LEAST_STEPS:
        return Measure.unknown(name, "s", before, after)
    return Measure.of(name, "s", counts, means(before, after))
