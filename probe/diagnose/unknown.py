"""What keeps a job in which nothing was found from being called healthy: too little of it was seen.

Called by probe.diagnose.why.  Invariant: pure but for queries; what is told is what the rules lacked.
"""

from __future__ import annotations

from math import ceil

from ..derive.phases_at import unrecorded
from .diagnosis import Diagnosis
from .figures import ms
from .measures.module_calls import BY_STEP
from .measures.outside import unknown_outside
from .measures.places import places
from .measures.spells import spells
from .rule import Finding
from .watched import BLOCK, LEAST_BLOCKS, LEAST_STEPS, Watched

_MUCH = 0.3  # of the step, in no phase
_LONGER, _LONGER_S = 4, 120.0  # times as long as was watched, and at least so long
_OF_DEVICES = "gpu-idle"


def why_unknown(told: Diagnosis, watched: Watched) -> Finding | None:
    """None if enough was seen.  told: what the rules found, which is nothing above a hint."""
    if watched.steps < LEAST_STEPS:
        return _few_steps(told)
    return _unknown_phases(told, watched) if "other" not in watched.phases else _untold(told, watched)


def _few_steps(told: Diagnosis) -> Finding:
    looked = f"{len(told.skipped)} of {len(told.skipped) + len(told.checked)} rules could not look"
    sentence = f"Unknown: {looked} at {told.steps} steps of {ms(told.step_s or 0.0)}, {LEAST_STEPS} are needed."
    return Finding(sentence, remedy=_watch(told, max(10, 2 * LEAST_STEPS * (told.step_s or 0.0))))


def _unknown_phases(told: Diagnosis, watched: Watched) -> Finding:
    """The rest of a step tells of all phases: what is in none can be told only once they all are.  To watch for longer
    helps where few steps were sampled, not where so many rows come that older ones are overwritten."""
    for facts in watched.agents:
        for phase in sorted({"data", "forward"} & unrecorded(facts)):
            tap = {"data": "loader", "forward": "forward"}[phase]
            if (state := facts.taps.get(tap)) is not None:
                return Finding(f"Unknown: the phases of the steps are not known: {tap} is {state}.")
    known, sampled, each = len(watched.sampled(known=True)), watched.sampled(), ms(watched.step_s)
    if len({step // BLOCK for step in sampled}) >= LEAST_BLOCKS:
        return Finding(
            f"Unknown: the phases are known of {known} of {len(sampled)} sampled steps of {each}, {LEAST_STEPS} are "
            "needed: rows of the others have been overwritten."
        )
    return Finding(
        f"Unknown: the phases are known of {known} of {told.steps} steps of {each}, {LEAST_STEPS} sampled ones are "
        "needed.",
        remedy=_watch(told, max(_LONGER_S, _LONGER * told.seconds)),
    )


def _untold(told: Diagnosis, watched: Watched) -> Finding | None:
    """Much time in no phase, at which no rule looks: without a profile at none of it, with one at Python alone.

    That may be a fifth of the step of a healthy job with a small model on a CPU: its loss, its log and the loop itself.
    So it takes more than what makes a warning.  A server waits there for requests, and a loop for a device that is
    busy: that much is known without a profile.
    """
    other = watched.phases["other"]
    is_server = any(facts.step_ends == "call" for facts in watched.agents)
    is_busy = _OF_DEVICES in told.checked and all(each.code != _OF_DEVICES for each in told.findings)
    if other.share < _MUCH or is_server or is_busy:
        return None
    if not watched.why_not_profiled:
        return _no_python(told, watched)
    return Finding(
        f"Unknown: {ms(other.share * watched.step_s)} of {ms(watched.step_s)} a step are in no phase, and without a "
        f"profile nothing tells what they are: {watched.why_not_profiled}.",
        remedy=f"probe {told.endpoint} profile",
    )


def _no_python(told: Diagnosis, watched: Watched) -> Finding | None:
    """What the job's own code calls that lets go of the GIL; not where that may be the wait for a device, or is the
    model itself, written without modules."""
    is_on_cuda = any(row["on_cuda"] for row in watched.rows(BY_STEP))
    forward = watched.phases.get("forward")
    if forward is None or forward.seconds == 0 or (is_on_cuda and _OF_DEVICES not in told.checked):
        return None
    everything = places(watched)
    called = unknown_outside(everything)
    found, place = spells(everything, called), called.deepest()
    if found is None or found.share < _MUCH:
        return None
    part = f"{ms(found.share * watched.step_s)} of {ms(watched.step_s)} a step"
    return Finding(
        f"Unknown: {part} are in {place or 'own code'}, outside of model, loader and optimizer; what is called there "
        "lets go of the GIL, and is not known."
    )


def _watch(told: Diagnosis, seconds: float) -> str:
    return f"probe {told.endpoint} why --seconds {ceil(seconds / 10) * 10}"
