"""Activation checkpointing, which computes forward passes twice, although there is memory for their results."""

from __future__ import annotations

from collections.abc import Iterator

from ...figures import megabytes, ms, pct
from ...measures.live_values import is_readable, of_model, value
from ...measures.memory_left import CONTAINER, left
from ...measures.module_calls import BY_STEP, is_on_cuda, of_steps, saved
from ...rule import Finding, Rule
from ...watched import Watched

LEAST = 0.03  # of the step
_AMPLE = 0.5  # of the memory in use, at most: it is ample
_USED = (
    "SELECT (SELECT MAX(host_memory_used_pct) FROM host.process_trace WHERE {window}) AS host_pct, "
    "(SELECT MAX(100 * memory_used_mb / memory_total_mb) FROM host.gpu_trace WHERE {window}) AS device_pct"
)
# What recomputing allocates in a step, on each device, is what would be held at once without checkpointing.  A call
# inside another one counts with both, and so makes up for what functions between modules keep.
_KEPT = (
    "SELECT rank, device, MAX(mb) AS mb FROM (SELECT rank, step, device, CASE WHEN COUNT(allocated_delta) = COUNT(*) "
    "THEN SUM(GREATEST(allocated_delta, 0)) END AS mb FROM python.torch_trace WHERE {window} AND recompute "
    "GROUP BY ALL) GROUP BY ALL ORDER BY rank, device"
)
_UNKNOWN = " here, if there is room for what it saves, which is not known"
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
    short = _short(watched)
    switch = "" if short else _switch(watched, root)
    yield Finding(
        f"Recompute: {pct(part.share)} of each step runs forward passes again, and {pct(1 - used)} of {whose} is free.",
        why=[f"recomputed {ms(part.seconds)} ({ms(part.low)} to {ms(part.high)}) of {ms(watched.step_s)}"],
        remedy=f'probe {watched.endpoint} eval "{switch}"' if switch else f"no activation checkpointing{short}",
        effect="takes effect with the next step" if switch else "",
        seconds=part.seconds, share=part.share, confidence=part.sure(LEAST),
        severity="hint" if short not in ("", _UNKNOWN) else None, where=root or "", saves=saved(watched, part.seconds),
        assumes="without checkpointing",
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


def _short(watched: Watched) -> str:
    """Why there may be no room without checkpointing; '' if there is."""
    rows = watched.rows(_KEPT)
    for row in rows:
        free = left(watched, row["rank"], row["device"])
        if row["mb"] is None or free is None:
            return _UNKNOWN
        if row["mb"] > free.mb:
            more = f"some {megabytes(row['mb'])} more would be held, and {megabytes(free.mb)} of {free.what} are free"
            return f" of some modules: without any, {more}"
    return "" if rows else _UNKNOWN


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
