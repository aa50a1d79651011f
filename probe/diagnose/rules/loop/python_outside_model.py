"""Python that the training runs between the phases of the step."""

from __future__ import annotations

from collections.abc import Iterator

from ....errors import SilentError
from ...figures import ms, pct
from ...measures.module_calls import saved
from ...measures.outside import python_outside
from ...measures.places import places
from ...measures.spells import spells
from ...rule import Finding, Rule
from ...watched import Watched

LEAST = 0.05  # of the time: what a loop itself takes, with its log line and its loss


def _find(watched: Watched) -> Iterator[Finding]:
    if watched.phase("forward").seconds == 0:
        raise SilentError("No call of a module that trains: what is outside cannot be told.", code="few-steps")
    everything = places(watched)
    python = python_outside(everything)
    found, place = spells(everything, python), python.deepest()
    if found is None or found.share < LEAST:
        return
    if place is None:
        raise SilentError("No function stands out in the profile.", code="no-profile")
    yield Finding(
        f"Python outside the model: {pct(found.share)} of each step, {pct(place.share)} of that in {place.function}.",
        (found.rank,) if len(watched.ranks) > 1 else (),
        [f"{ms(found.share * watched.step_s)} of {ms(watched.step_s)} a step in neither model, loader nor optimizer"],
        f"Do less in {place.function}, with tensors instead of Python, or not in each step.",
        seconds=found.share * watched.step_s, share=found.share, confidence=found.sure(LEAST), where=str(place),
        saves=saved(watched, found.share * place.share * watched.step_s) if len(watched.ranks) == 1 else None,
        assumes=f"if {place.function} took no time",
    )  # fmt: skip


PYTHON_OUTSIDE_MODEL: Rule[Watched] = Rule(
    "python-outside-model",
    "Python outside of model, loader and optimizer takes much of the step.",
    _find,
    needs=("python.step_trace", "python.profile", "python.torch_trace"),
    of=("gpu-idle",),
    sql="SELECT function, file, line, SUM(seconds) AS seconds FROM python.profile WHERE {window} AND phase = 'other' "
    "GROUP BY ALL ORDER BY seconds DESC",
)
