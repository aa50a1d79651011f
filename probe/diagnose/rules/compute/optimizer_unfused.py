"""Optimizers that update one parameter after the other, each in many small operations."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ....errors import SilentError
from ...figures import megabytes, ms, number, pct
from ...measures.live_values import ALL_OPTIMIZERS, OPTIMIZERS, value
from ...measures.memory_left import MB, least_of_devices
from ...rule import Finding, Rule
from ...watched import Phase, Watched

LEAST = 0.03  # of the step
_FUSES_ON_CPU = (2, 4)  # torch, from this version on
# Of its time that is left once it is fused: measured on one core, with 8 to 900 tensors of 16 to 1.6 million numbers.
# Of plain SGD, nearly all is, for it does one operation a tensor anyway; Adagrad takes sparse gradients, which fused
# ones refuse.
_LEFT = {"Adam": 0.15, "AdamW": 0.15}
_SQL = (
    "SELECT rank, module AS optimizer, COUNT(*) AS steps, COUNT(*) / COUNT(DISTINCT step) AS a_step, "
    "1e3 * AVG(host_duration) AS ms FROM python.torch_trace "
    "WHERE {window} AND stage = 'step' GROUP BY rank, module ORDER BY ms DESC"
)
# Told apart by their groups, which one that wraps another has in common with it.
_SETTINGS, _ALL_SETTINGS = (
    "[(id(o.param_groups), n, type(getattr(o, 'optimizer', o)).__name__, "
    "sum(len(g['params']) for g in o.param_groups), "
    "[(g.get('foreach'), g.get('fused', 'unknown') if all(p.is_floating_point() for p in g['params']) else 'unknown') "
    "for g in o.param_groups], "
    f"next((p.device.type for g in o.param_groups for p in g['params']), ''), "
    "sum(p.numel() * p.element_size() for g in o.param_groups for p in g['params'])) "
    f"for n, o in {optimizers}]"
    for optimizers in (OPTIMIZERS, ALL_OPTIMIZERS)
)


class _Optimizer(NamedTuple):
    """name: '' if the loop's frame has none; kind: its class, of what it wraps if it does; parameters: how many
    tensors; groups: (foreach, fused) of each, and `unknown` where it cannot be fused; size: of the
    parameters, in bytes."""

    id: int
    name: str
    kind: str
    parameters: int
    groups: Sequence[tuple[bool | None, bool | str | None]]
    device: str
    size: int

    @property
    def is_loop(self) -> bool:
        """Whether it updates one after the other, which is what torch does by default on the CPU."""
        by_default = self.device == "cpu"
        return all(not fused and (foreach is False or (not foreach and by_default)) for foreach, fused in self.groups)


def _find(watched: Watched) -> Iterator[Finding]:
    phase = watched.phase("optimizer")
    if phase.share < LEAST or not {row["optimizer"] for row in watched.rows(_SQL)} & {*_LEFT}:
        return
    every = _optimizers(watched)
    loops = [each for each in every if each.kind in _LEFT and each.is_loop]
    # What they take is split by their parameters: that is how often each runs its loop.
    gain = sum(each.parameters * (1 - _LEFT[each.kind]) for each in loops) / sum(each.parameters for each in every)
    part = phase.scaled(gain)
    if part.share >= LEAST:
        yield _finding(watched, loops, part)


def _finding(watched: Watched, loops: Sequence[_Optimizer], part: Phase) -> Finding:
    phase, first = watched.phase("optimizer"), loops[0]
    names, is_cpu = _names(loops), first.device == "cpu"
    why_not = _why_not_fused(watched) if is_cpu else _why_not_foreach(watched, loops)
    is_live = not why_not and all(each.name for each in loops)
    in_code = f"{first.kind}(…, fused=True)" + " for each" * (len(loops) > 1)
    foreach, fused = first.groups[0]
    count = number(sum(each.parameters for each in loops))
    return Finding(
        f"Unfused optimizer: {names} ({first.kind}) update{'s' * (len(loops) == 1)} {count} parameters one after the "
        f"other, for {pct(phase.share)} of the step.",
        why=[f"optimizer {ms(phase.seconds)} ({ms(phase.low)} to {ms(phase.high)}) of {ms(watched.step_s)}"],
        remedy=_live(watched, loops) if is_live else in_code + why_not,
        effect=f"takes effect with the next step; in the code: {in_code}" if is_live else "",
        seconds=part.seconds, share=part.share, confidence=part.sure(LEAST), where=names,
        now=f"{first.name or first.kind}: foreach={foreach}, fused={fused}",
        saves=part.seconds if is_cpu else None, assumes="with one fused operation" if is_cpu else "",
    )  # fmt: skip


def _names(loops: Sequence[_Optimizer]) -> str:
    """`a and b`, `a and 3 others`, `4 optimizers`."""
    named = [each.name for each in loops if each.name]
    others = len(loops) - len(named)
    return " and ".join(named + [number(others, "other" if named else "optimizer")] * (others > 0))


def _live(watched: Watched, loops: Sequence[_Optimizer]) -> str:
    groups = [f"{each.name}.param_groups" for each in loops]
    every = groups[0] if len(groups) == 1 else f"[{', '.join(f'*{each}' for each in groups)}]"
    # On CUDA the state of the steps so far would have to move for `fused`.
    switch = "fused" if loops[0].device == "cpu" else "foreach"
    return f"probe {watched.endpoint} eval \"for group in {every}: group['{switch}'] = True\""


def _why_not_fused(watched: Watched) -> str:
    """That the job's torch lacks these operations for the CPU, and would raise in the next step; else ''."""
    found = re.match(r"(\d+)\.(\d+)", (watched.agents[0].torch if watched.agents else None) or "")
    can = found is not None and (int(found[1]), int(found[2])) >= _FUSES_ON_CPU
    return "" if can else ", with torch 2.4 or later"


def _why_not_foreach(watched: Watched, loops: Sequence[_Optimizer]) -> str:
    """That its temporaries, which torch says are about as large as the parameters, may not fit; else ''."""
    wanted_mb, free_mb = sum(each.size for each in loops) / MB, least_of_devices(watched)
    if free_mb is not None and wanted_mb <= free_mb:
        return ""
    free = "how much is free is not known" if free_mb is None else f"{megabytes(free_mb)} are free"
    return f": foreach=True would take some {megabytes(wanted_mb)} more of the device, and {free}"


def _optimizers(watched: Watched) -> list[_Optimizer]:
    """Each once, the largest first: those of the loop's frame; where more steps are made, all that there are."""
    found = _read(watched, _SETTINGS)
    if _steps(watched) > len(found):
        found = _read(watched, _ALL_SETTINGS) | found
    return sorted(found.values(), key=lambda each: -each.parameters)


def _steps(watched: Watched) -> int:
    """How many optimizers step in each step of the job, or one how often."""
    ranks = dict[int, float]()
    for row in watched.rows(_SQL):
        ranks[row["rank"]] = ranks.get(row["rank"], 0.0) + row["a_step"]
    return round(max(ranks.values(), default=0.0))


def _read(watched: Watched, asked: str) -> dict[int, _Optimizer]:
    """Raises SilentError if there are none."""
    told = value(watched, asked)
    if not told:
        raise SilentError("The settings of the optimizer could not be read.", code="unseen")
    return {each.id: each for each in (_Optimizer(*one) for one in told)}


OPTIMIZER_UNFUSED: Rule[Watched] = Rule(
    "optimizer-unfused",
    "The optimizer updates one parameter after the other.",
    _find,
    needs=("python.step_trace", "python.torch_trace", "host.gpu_trace"),
    sql=_SQL,
    asks=(_SETTINGS, _ALL_SETTINGS),
)
