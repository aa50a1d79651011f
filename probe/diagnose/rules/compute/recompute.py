"""Activation checkpointing, which computes forward passes twice, although there is memory for their results."""

from __future__ import annotations

from collections.abc import Iterator

from ...figures import ms, pct
from ...measures.live_values import is_readable, of_model, value
from ...measures.memory_left import CONTAINER
from ...measures.module_calls import BY_STEP, is_on_cuda, of_steps, saved
from ...rule import Finding, Rule
from ...watched import Watched

LEAST = 0.03  # of the step
_AMPLE = 0.5  # of the memory in use: what checkpointing saves may well be as much as all that is held
_USED = (
    "SELECT (SELECT MAX(host_memory_used_pct) FROM host.process_trace WHERE {window}) AS host_pct, "
    "(SELECT MAX(100 * memory_used_mb / memory_total_mb) FROM host.gpu_trace WHERE {window}) AS device_pct"
)
_DISABLES = "hasattr(ROOT, 'gradient_checkpointing_disable')"
_SWITCHES = (
    "[(name, key) for name, module in ROOT.named_modules() for key, v in vars(module).items() "
    "if 'checkpoint' in key and v is True]"
)


def _find(watched: Watched) -> Iterator[Finding]:
    rows = [row for row in watched.rows(BY_STEP) if row["recomputed"]]
    if not rows:
        return
    part, root = of_steps(watched, "recomputed_s", "recomputing"), rows[0]["recomputed"]
    whose, used = _memory(watched, on_cuda=is_on_cuda(watched))
    if part.share < LEAST or used is None or used > _AMPLE:
        return
    switch = _switch(watched, root)
    yield Finding(
        f"Recompute: {pct(part.share)} of each step runs forward passes again, and {pct(1 - used)} of {whose} is free.",
        why=[f"recomputed {ms(part.seconds)} ({ms(part.low)} to {ms(part.high)}) of {ms(watched.step_s)}"],
        remedy=f'probe {watched.endpoint} eval "{switch}"' if switch else "no activation checkpointing here",
        effect="takes effect with the next step" if switch else "",
        seconds=part.seconds, share=part.share, confidence=part.sure(LEAST),
        where=root or "", saves=saved(watched, part), assumes="without checkpointing",
    )  # fmt: skip


def _memory(watched: Watched, on_cuda: bool) -> tuple[str, float | None]:
    """Which memory the activations are in, and how much of it is used at most; None if that is not known."""
    (row,) = watched.rows(_USED)
    whose, pct_used = ("the device's memory", "device_pct") if on_cuda else ("the memory", "host_pct")
    used = None if row[pct_used] is None else row[pct_used] / 100
    limit = None if on_cuda or used is None or used > _AMPLE else value(watched, CONTAINER)
    if limit and limit[0].strip().isdigit():
        used = max(used or 0.0, int(limit[1]) / int(limit[0]))
    return whose, used


def _switch(watched: Watched, root: str | None) -> str:
    """The statement that switches checkpointing off, if the model has an attribute for it; else ''."""
    if not root or not is_readable(root):
        return ""
    if value(watched, of_model(_DISABLES, root)):
        return f"{root}.gradient_checkpointing_disable()"
    switches = value(watched, of_model(_SWITCHES, root)) or []
    names = {key for _, key in switches}
    if len(names) != 1:
        return ""
    (name,), (module, _) = names, switches[0]
    if len(switches) == 1 and all(part.isidentifier() for part in module.split(".") if module):
        return f"{'.'.join(filter(None, (root, module, name)))} = False"
    return f"for module in {root}.modules(): vars(module).get('{name}') and setattr(module, '{name}', False)"


RECOMPUTE: Rule[Watched] = Rule(
    "recompute",
    "Activations are computed twice although there is memory to keep them.",
    _find,
    needs=("python.step_trace", "python.torch_trace", "host.process_trace", "host.gpu_trace"),
    of=("compute-bound",),
    sql=BY_STEP,
    asks=(CONTAINER, _DISABLES, _SWITCHES),
)
