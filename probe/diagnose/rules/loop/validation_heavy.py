"""Validation that takes much of the time."""

from __future__ import annotations

from collections.abc import Iterator

from ....errors import SilentError
from ...figures import figure, ms, pct
from ...measures.outside import calls_of_models, python_outside
from ...measures.places import EXPLAINS, Place, Places, Stack, file_of, places
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
_MUCH = 0.2  # of the time in a function, in Python: a rollout, whose environment takes steps, or a costly metric


def _find(watched: Watched) -> Iterator[Finding]:
    part = _validating(watched)
    everything = places(watched) if not watched.why_not_profiled else None
    if part < EXPLAINS:  # frozen models and rollouts train nothing either, but are a part of the step
        yield from _in_steps_not_sampled(watched, everything) if everything else ()
    elif everything and (place := _validates(everything)):
        yield from _of_function(watched, everything, place)
    else:
        yield from _by_phase(watched, part)


def _validating(watched: Watched) -> float:
    """Of the calls that train nothing, the part that models take which are trained at other times, in eval mode."""
    rows = watched.rows(_SQL)
    validating = sum(row["eval_mode_s"] or 0.0 for row in rows if row["training_s"])
    every = sum((row["eval_mode_s"] or 0.0) + (row["no_grad_s"] or 0.0) for row in rows)
    return validating / every if every else 0.0


def _validates(everything: Places) -> Place | None:
    """The function that does; None if none stands out."""
    training = everything.where(lambda stack: stack.phase in _TRAINING)
    return everything.where(lambda stack: stack.phase == "validation").outermost(training)


def _in_steps_not_sampled(watched: Watched, everything: Places) -> Iterator[Finding]:
    """The function that calls a model as no sampled step does: each validation may be within one step.  Raises
    SilentError if there are such calls, and none stands out that does nothing else."""
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
    why = "in steps that were not sampled, so the mode of its calls is not known"
    yield from _of_function(watched, everything, place, why)


def _of_function(watched: Watched, everything: Places, place: Place, *why: str) -> Iterator[Finding]:
    """With all that it does in all steps, sampled or not."""
    calling = everything.within(place.is_at)
    taken = spells(everything, calling)
    if taken is None or taken.share < LEAST:
        return
    python = _python(calling, place)
    yield _doubted(place, taken, python, *why) if python >= _MUCH else _finding(watched, place, taken, *why)


def _python(calling: Places, place: Place) -> float:
    """Of its time, that in Python beside models, batches and the trainer that the function is of; 0 if it is not known
    who holds the GIL, since operations on tensors could not be told from it."""
    trainer, is_library, _ = place.at.partition("/")

    def is_beside(stack: Stack) -> bool:
        is_trainer = bool(is_library) and file_of(stack.frames[-1]).startswith(f"{trainer}/")
        return stack.holds_gil is not None and not is_trainer

    return python_outside(calling).where(is_beside).seconds / calling.seconds


def _doubted(place: Place, taken: Spells, python: float, *why: str) -> Finding:
    """A hint that does not say what it costs, so that it explains nothing: neither Python nor collectives."""
    return Finding(
        f"{place.function} takes {pct(taken.share)} of the time, {taken}; it may be more than a validation: "
        f"{pct(python)} of that is Python outside of the model.",
        why=[*why], remedy=f"Call {place.function} less often, or make it cheaper.", severity="hint", where=str(place),
    )  # fmt: skip


def _finding(watched: Watched, place: Place, taken: Spells, *why: str) -> Finding:
    if taken.count < 2:  # how often it comes is not known
        return Finding(
            f"Validation took {figure(taken.each_s)} s; it came once in {watched.seconds:.0f} s.",
            why=[*why],
            remedy=f"probe {watched.endpoint} why --seconds {max(60.0, 4 * watched.seconds):.0f}",
            severity="hint", where=str(place),
        )  # fmt: skip
    title, remedy = "Validation-heavy", "Validate less often, or on fewer batches"
    if why:  # it may be a rollout
        title, remedy = "Calls of a model that train nothing", "Make fewer of them"
    return Finding(
        f"{title}: {pct(taken.share)} of the time goes into {place.function}, {taken}.",
        (taken.rank,) if len(watched.ranks) > 1 else (),
        [f"the median step takes {ms(watched.usual_step_s)}", *why],
        f"{remedy}: {place.function}.",
        seconds=taken.share * watched.step_s, share=taken.share, confidence=taken.sure(LEAST), where=str(place),
        saves=taken.share * watched.step_s / 2, assumes=f"with half as many calls of {place.function}",
    )  # fmt: skip


def _by_phase(watched: Watched, part: float) -> Iterator[Finding]:
    phase = watched.phase("validation")
    share = part * phase.share
    if share >= LEAST:
        yield Finding(
            f"Validation-heavy: {pct(share)} of each step is forward passes in eval mode.",
            remedy="Validate less often, or on fewer batches.",
            seconds=part * phase.seconds, share=share, confidence=phase.sure(LEAST / part),
            saves=part * phase.seconds / 2, assumes="with half as much of it",
        )  # fmt: skip


VALIDATION_HEAVY: Rule[Watched] = Rule(
    "validation-heavy",
    "Validation takes much of the time.",
    _find,
    needs=("python.step_trace", "python.torch_trace", "python.profile"),
    of=("communication-bound", "python-outside-model"),
    sql=_SQL,
)
