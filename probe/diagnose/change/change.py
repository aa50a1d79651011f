"""What a change brought: the steps before the last eval that changed something, compared with those after it.

Called by `probe why --since-change`, on the tables as a user would query them.  A step's time is the mean over its
ranks.  Invariant: no step counts in which an eval held the job, nor any before the previous change was in effect or
after the next one was made.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...errors import SilentError
from ..figures import pct
from ..rule import Tables
from .blocks import LEAST_STEPS, Values, means, medians, rates
from .changes_made import Changes, Made, epochs
from .report import Change, Measure, digits

MOST_STEPS = 1000  # on each side: near the change, so that what else changes in a job matters little
_SETTLES = 2.0  # times the median
_SHORT_EPOCH = 200  # steps; what the start of a longer one takes is little beside its steps
_UNLIKE = 0.1  # difference in the share of sampled steps, which cost a little more
PHASES = "data", "forward", "backward", "validation", "optimizer", "comm", "other"
Steps = dict[str, Values]  # columns, in the order of steps; NaN where the value is not known of every rank
Window = tuple[tuple[int, int], tuple[int, int]]
_RANKS = "CASE WHEN COUNT({0}) = COUNT(*) THEN {1}({0}) END AS {2}"
_STEPS = ", ".join((
    "step, COUNT(*) AS ranks, AVG(duration) AS duration, BOOL_AND(sampled) AS sampled",
    _RANKS.format("samples", "SUM", "samples"),
    *(_RANKS.format(f"{phase}_duration", "AVG", phase) for phase in PHASES if phase != "other"),
    # in an unsampled step, calls of modules are in it, too
    "CASE WHEN BOOL_AND(sampled) THEN AVG(other_duration) END AS other",
))  # fmt: skip


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
    before, after = _whole(*(_steps(tables, *each) for each in window))
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


def _steps(tables: Tables, first: int, last: int) -> Steps:
    """Those from first to last that have ended and that no eval held."""
    table = tables.query(
        f"SELECT {_STEPS} FROM python.step_trace WHERE step BETWEEN {first} AND {last} AND duration IS NOT NULL "
        "GROUP BY step HAVING NOT COALESCE(BOOL_OR(eval_duration > 0), FALSE) ORDER BY step"
    ).table
    names = table.column_names
    return {name: np.array(table.column(name).to_pylist(), np.float64) for name in names}


def _whole(*sides: Steps) -> list[Steps]:
    """Only the steps that all ranks have ended."""
    ranks = max((side["ranks"].max() for side in sides if len(side["ranks"])), default=0)
    return [{name: values[side["ranks"] == ranks] for name, values in side.items()} for side in sides]


def _compared(made: Made, window: Window, before: Steps, after: Steps, again: str, more: list[str]) -> Change:
    (first, _), (start, _) = window
    effect = made.last if made.effect is None else made.effect
    settling = [_settling(side["duration"]) for side in (before, after)]
    sides = [{name: each[count:] for name, each in side.items()}
             for side, count in zip((before, after), settling, strict=True)]  # fmt: skip
    _require(made, first, start, sides, again)
    chosen, notes = _alike(sides)
    seconds = [side["duration"][mine] for side, mine in zip(sides, chosen, strict=True)]
    counts = len(seconds[0]), len(seconds[1])
    return Change(
        made.last, "; ".join(made.codes), list(made.changed), list(made.loaders), effect, start,
        (settling[0], settling[1]), *counts,
        Measure.of("step", "s", counts, means(*seconds)),
        Measure.of("median step", "s", counts, medians(*seconds)),
        _samples([_filled(side["samples"])[mine] for side, mine in zip(sides, chosen, strict=True)], seconds, counts),
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


def _settling(seconds: Values) -> int:
    """How many of the first steps to leave out: those that took over twice the median, up to the first that did not.
    New workers, compilation and caches make the first steps slow on either side; later steps are never left out."""
    return int(np.argmin(seconds > _SETTLES * np.median(seconds))) if len(seconds) else 0


def _alike(sides: list[Steps]) -> tuple[list[Values], list[str]]:
    """(which steps of each side to compare, notes): all, unless one side has more sampled steps than the other."""
    sampled = [side["sampled"] > 0 for side in sides]
    shares = [each.mean() for each in sampled]
    every = [np.ones(len(each), np.bool_) for each in sampled]
    if abs(shares[0] - shares[1]) <= _UNLIKE:
        return every, []
    told = f"{pct(shares[0])} of the steps before were sampled, {pct(shares[1])} after"
    kinds = [sampled, [~each for each in sampled]]
    best = max(kinds, key=lambda kind: min(each.sum() for each in kind))
    if min(each.sum() for each in best) < LEAST_STEPS:
        return every, [f"{told}, and sampled steps take a little longer."]
    return best, [f"{told}: only {'sampled' if best is sampled else 'unsampled'} steps are compared."]


def _samples(samples: list[Values], seconds: list[Values], counts: tuple[int, int]) -> Measure | None:
    """Samples per second over all ranks."""
    if any(np.isnan(each).any() for each in samples):
        return None
    before, after = zip(seconds, samples, strict=True)
    return Measure.of("samples", "1/s", counts, rates(before, after))


def _filled(samples: Values) -> Values:
    """A step whose samples are unknown counts as the mean of the others; NaN if all are."""
    known = samples[~np.isnan(samples)]
    return np.where(np.isnan(samples), known.mean() if len(known) else np.nan, samples)


def _phase(name: str, *sides: Values) -> Measure:
    before, after = (each[~np.isnan(each)] for each in sides)
    counts = len(before), len(after)
    if min(counts) < LEAST_STEPS:
        return Measure.unknown(name, "s", before, after)
    return Measure.of(name, "s", counts, means(before, after))
