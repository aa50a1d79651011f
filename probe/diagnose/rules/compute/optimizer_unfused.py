"""Optimizers that update one parameter after the other, each in many small operations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ....errors import SilentError
from ...figures import ms, number, pct
from ...live_values import OPTIMIZERS, value
from ...rule import Finding, Rule
from ...watched import Watched

LEAST = 0.03  # of the step
# Of its time that is left once it is fused: measured on one core, with 8 to 900 tensors of 16 to 1.6 million numbers.
# Of plain SGD, nearly all is, for it does one operation a tensor anyway.
_LEFT = {"Adam": 0.15, "AdamW": 0.15, "Adagrad": 0.25}
_SQL = (
    "SELECT rank, module AS optimizer, COUNT(*) AS steps, 1e3 * AVG(host_duration) AS ms FROM python.torch_trace "
    "WHERE {window} AND stage = 'step' GROUP BY rank, module ORDER BY ms DESC"
)
_SETTINGS = (
    f"[(n, type(o).__name__, sum(len(g['params']) for g in o.param_groups), "
    "[(g.get('foreach'), g.get('fused')) for g in o.param_groups], str(o.param_groups[0]['params'][0].device.type)) "
    f"for n, o in {OPTIMIZERS} if 'fused' in o.param_groups[0]]"
)


def _find(watched: Watched) -> Iterator[Finding]:
    phase = watched.phase("optimizer")
    kinds = {row["optimizer"] for row in watched.rows(_SQL)}
    if phase.share < LEAST or not kinds & {*_LEFT}:
        return
    for name, kind, count, groups, device in _settings(watched):
        share = phase.share * (1 - _LEFT.get(kind, 1.0))
        if share < LEAST or not all(_is_loop(group, device) for group in groups):
            continue
        seconds = phase.seconds * share / phase.share
        foreach, fused = groups[0]
        switch = "fused" if device == "cpu" else "foreach"  # on CUDA its state would have to move for `fused`
        yield Finding(
            f"Unfused optimizer: {name} ({kind}) updates {number(count)} parameters one after the other, for "
            f"{pct(phase.share)} of the step.",
            why=[f"optimizer {ms(phase.seconds)} ({ms(phase.low)} to {ms(phase.high)}) of {ms(watched.step_s)}"],
            remedy=f"probe {watched.endpoint} eval \"for group in {name}.param_groups: group['{switch}'] = True\"",
            effect=f"takes effect with the next step; in the code: {kind}(…, fused=True)",
            seconds=seconds, share=share, confidence=phase.sure(LEAST), now=f"{name}: foreach={foreach}, fused={fused}",
            saves=seconds if device == "cpu" else None, assumes="with one fused operation" if device == "cpu" else "",
        )  # fmt: skip
        return  # how the time is split between several is not known


def _settings(watched: Watched) -> list[Any]:
    """Name, class, number of parameters, (foreach, fused) of each group, and device of each, the largest first."""
    found = value(watched, _SETTINGS)
    if found is None:
        raise SilentError("The settings of the optimizer could not be read.", code="few-steps")
    return sorted(found, key=lambda each: -each[2])


def _is_loop(group: tuple[bool | None, bool | None], device: str) -> bool:
    """Whether it updates them one by one, which is what torch does by default on the CPU."""
    foreach, fused = group
    return not fused and (foreach is False or (not foreach and device == "cpu"))


OPTIMIZER_UNFUSED: Rule[Watched] = Rule(
    "optimizer-unfused",
    "The optimizer updates one parameter after the other.",
    _find,
    needs=("python.step_trace", "python.torch_trace"),
    sql=_SQL,
)
