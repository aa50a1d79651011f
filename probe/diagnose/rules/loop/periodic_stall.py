"""A function of the job that holds the training up in some steps, as a log or a metric does every so many steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import lru_cache

from ...figures import ms, pct
from ...measures.module_calls import saved
from ...measures.outside import is_saving, outside
from ...measures.places import Places, function_of, places
from ...measures.spells import Spells, spells
from ...rule import Finding, Rule
from ...watched import Watched

LEAST = 0.03  # of the time: below that nobody would look for it
_MOST = 3  # findings
_REGULAR = 0.5  # of the median step: what is shorter stalls nothing
_IRREGULAR = 2.0  # of the median step, where it comes at no regular distance: by chance, too, a step takes longer
_CHANCE = 0.02  # of the time in phases: what is there for more is the loop itself
_RARE = 0.5  # of its share of the time: what is in each step is in that part of the steps that were looked at
_SQL = (
    "SELECT rank, step, duration, MEDIAN(duration) OVER (PARTITION BY rank ORDER BY step ROWS BETWEEN 25 PRECEDING AND "
    "25 FOLLOWING) AS usual FROM python.step_trace WHERE {window} AND duration IS NOT NULL AND "
    "COALESCE(eval_duration, 0) = 0 QUALIFY duration > 1.5 * usual ORDER BY step, rank"
)


def _find(watched: Watched) -> Iterator[Finding]:
    everything = places(watched)
    left = outside(everything).where(lambda stack: not stack.has(is_saving))
    for _ in range(_MOST):
        found = _dearest(watched, everything, left)
        if found is None:
            return
        key, stalls = found
        yield _finding(watched, stalls, _called(everything, _with(left, key), key))
        left = _without(left, key)


def _dearest(watched: Watched, everything: Places, left: Places) -> tuple[str, Spells] | None:
    """What costs most of what stalls some steps: functions at regular distances first, then lines of a function that
    does other things, too, then what comes at no regular distance."""
    inside = everything.where(lambda stack: stack.phase not in ("other", None))
    seconds, of_loop = _seconds(left), _seconds(inside)
    least_s = LEAST * everything.seconds / max(1, len(watched.ranks))
    dear = [key for key, took in seconds.most_common() if took >= least_s and of_loop[key] < _CHANCE * inside.seconds]
    found = [(key, stalls) for key in dear if (stalls := spells(everything, _with(left, key))) is not None]
    stalling = [each for each in found if _are_stalls(each[1], watched)]
    return min(stalling, key=lambda each: (each[1].every is None, "(" in each[0]), default=None)


def _seconds(places: Places) -> Counter[str]:
    """By function and by line."""
    seconds: Counter[str] = Counter()
    for stack in places.stacks:
        seconds.update(dict.fromkeys(_keys(stack.frames), stack.seconds))
    return seconds


@lru_cache(10_000)
def _keys(frames: tuple[str, ...]) -> frozenset[str]:
    """Functions, and the lines at which they stand."""
    return frozenset((*frames, *map(function_of, frames)))


def _with(places: Places, key: str) -> Places:
    return places.where(lambda stack: key in _keys(stack.frames))


def _without(places: Places, key: str) -> Places:
    return places.where(lambda stack: key not in _keys(stack.frames))


def _are_stalls(stalls: Spells, watched: Watched) -> bool:
    if not stalls.are_seen or stalls.count < 2 or stalls.share < LEAST:
        return False
    if stalls.every is not None:
        return stalls.every > 1 and stalls.each_s >= _REGULAR * watched.usual_step_s
    return (
        stalls.count <= _RARE * stalls.share * stalls.looked_at and stalls.each_s >= _IRREGULAR * watched.usual_step_s
    )


def _called(everything: Places, part: Places, key: str) -> tuple[str, str]:
    """What the stall is called, and where it is: a function, or its line if the function does other things, too."""
    place = part.innermost(_without(everything, key))
    if place is None:
        return function_of(key) or key, key
    elsewhere = everything.within(place.is_at).seconds > 1.25 * part.seconds
    return str(place) if elsewhere else place.function, str(place)


def _finding(watched: Watched, stalls: Spells, called: tuple[str, str]) -> Finding:
    name, where = called
    return Finding(
        f"Periodic stall: {name} takes {stalls}: {pct(stalls.share)} of the time.",
        (stalls.rank,) if len(watched.ranks) > 1 else (),
        [f"the median step takes {ms(watched.usual_step_s)}"],
        f"Call {name} less often, or make it cheaper.",
        seconds=stalls.share * watched.step_s, share=stalls.share, confidence=stalls.sure(LEAST), where=where,
        saves=saved(watched, stalls.share * watched.step_s / 2), assumes=f"with {name} half as often",
    )  # fmt: skip


PERIODIC_STALL: Rule[Watched] = Rule(
    "periodic-stall",
    "A function of the job holds up some steps, as a rule every so many.",
    _find,
    needs=("python.step_trace", "python.profile", "python.torch_trace"),
    of=("python-outside-model", "communication-bound", "straggler"),
    sql=_SQL,
)
