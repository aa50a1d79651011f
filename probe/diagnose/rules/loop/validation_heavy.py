"""Validation that takes much of the time."""

from __future__ import annotations

from collections.abc import Iterator

from ....errors import SilentError
from ...figures import figure, ms, pct
from ...measures.outside import calls_of_models
from ...measures.places import EXPLAINS, Place, places
from ...measures.spells import Spells, spells
from ...rule import Finding, Rule
from ...watched import Watched

LEAST = 0.08  # of the time: moderate validation takes some 5 %
_SQL = (
    "SELECT root, SUM(total_host_duration) FILTER (training AND grad) AS training_s, "
    "SUM(total_host_duration) FILTER (NOT training) AS eval_mode_s, "
    "SUM(total_host_duration) FILTER (training AND NOT grad) AS no_grad_s FROM python.torch_trace "
    "WHERE {window} AND stage = 'forward' AND depth = 0 AND NOT recompute GROUP BY root ORDER BY root"
)
_TRAINING = ("forward", "backward", "optimizer")
_EDGES = 0.02  # of the time in a function: samples at the edge of a phase


def _find(watched: Watched) -> Iterator[Finding]:
    part = _validating(watched)
    if part < EXPLAINS:  # frozen models and rollouts train nothing either, but are a part of the step
        yield from _in_steps_not_sampled(watched) if not watched.why_not_profiled else ()
        return
    found = _by_function(watched) if not watched.why_not_profiled else None
    if found is None:
        yield from _by_phase(watched, part)
    elif found[1].share >= LEAST:
        yield _finding(watched, *found)


def _validating(watched: Watched) -> float:
    """Of the calls that train nothing, the part that models take which are trained at other times, in eval mode."""
    rows = watched.rows(_SQL)
    validating = sum(row["eval_mode_s"] or 0.0 for row in rows if row["training_s"])
    every = sum((row["eval_mode_s"] or 0.0) + (row["no_grad_s"] or 0.0) for row in rows)
    return validating / every if every else 0.0


def _by_function(watched: Watched) -> tuple[Place, Spells] | None:
    """The function that validates, with all that it does in all steps, sampled or not; None if none stands out."""
    everything = places(watched)
    training = everything.where(lambda stack: stack.phase in _TRAINING)
    place = everything.where(lambda stack: stack.phase == "validation").outermost(training)
    taken = spells(everything, everything.within(place.is_at)) if place else None
    return (place, taken) if place and taken else None


def _in_steps_not_sampled(watched: Watched) -> Iterator[Finding]:
    """The function that calls a model as no sampled step does: each validation may be within one step.  Raises
    SilentError if there are such calls, and none stands out that does nothing else."""
    everything = places(watched)
    recorded, unknown = calls_of_models(everything)
    place = unknown.outermost(recorded)
    calling = everything.within(place.is_at) if place else unknown
    taken = spells(everything, calling)
    if taken is None or taken.share < LEAST or not taken.are_seen:
        return
    if watched.phase("forward").seconds == 0:  # a server trains nothing
        return
    training = calling.where(lambda stack: stack.phase in _TRAINING)
    if place is None or training.seconds > _EDGES * calling.seconds:
        again = f"Record all steps: probe {watched.endpoint} set sample=1"
        raise SilentError("Whether steps that were not sampled validate is not certain.", again, "undecided")
    yield _finding(watched, place, taken, "in steps that were not sampled, so the mode of its calls is not known")


def _finding(watched: Watched, place: Place, taken: Spells, *why: str) -> Finding:
    if taken.count < 2:  # how often it comes is not known
        return Finding(
            f"Validation took {figure(taken.each_s)} s; it came once in {watched.seconds:.0f} s.",
            why=[*why],
            remedy=f"probe {watched.endpoint} why --seconds {max(60.0, 4 * watched.seconds):.0f}",
            severity="hint", where=str(place),
        )  # fmt: skip
    return Finding(
        f"Validation-heavy: {pct(taken.share)} of the time goes into {place.function}, {taken}.",
        (taken.rank,) if len(watched.ranks) > 1 else (),
        [f"the median step takes {ms(watched.usual_step_s)}", *why],
        f"Validate less often, or on fewer batches: {place.function}.",
        seconds=taken.share * watched.step_s, share=taken.share, confidence=taken.sure(LEAST), where=str(place),
    )  # fmt: skip


def _by_phase(watched: Watched, part: float) -> Iterator[Finding]:
    phase = watched.phase("validation")
    share = part * phase.share
    if share >= LEAST:
        yield Finding(
            f"Validation-heavy: {pct(share)} of each step is forward passes in eval mode.",
            remedy="Validate less often, or on fewer batches.",
            seconds=part * phase.seconds, share=share, confidence=phase.sure(LEAST / part),
        )  # fmt: skip


VALIDATION_HEAVY: Rule[Watched] = Rule(
    "validation-heavy",
    "Validation takes much of the time.",
    _find,
    needs=("python.step_trace", "python.torch_trace", "python.profile"),
    of=("communication-bound", "python-outside-model"),
    sql=_SQL,
)
