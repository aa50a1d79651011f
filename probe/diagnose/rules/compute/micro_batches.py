"""Gradients that are accumulated over batches so small that starting their calls takes most of the time."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from ...figures import ms, number, pct
from ...measures.module_calls import BY_STEP, Calls, samples_a_step
from ...rule import Finding, Rule
from ...watched import Watched

LEAST = 0.03  # of the step
_MANY = 4  # backward passes in a step; two or three are as often those of several losses


def _find(watched: Watched) -> Iterator[Finding]:
    calls = Calls(watched)
    passes, tiny = median(row["passes"] for row in watched.rows(BY_STEP)), calls.tiny
    if passes < _MANY or not tiny:
        return
    part = calls.part(tiny)
    if part.share < LEAST:
        return
    batch = samples_a_step(watched)
    each = f" of {number(batch / passes, 'sample')}" if batch else ""
    yield Finding(
        f"Micro-batches: {pct(part.share)} of each step goes to starting the calls of {number(passes)} micro-batches.",
        why=[
            f"{ms(part.seconds)} ({ms(part.low)} to {ms(part.high)}) of {ms(watched.step_s)} in "
            f"{number(sum(module.calls_a_step for module in tiny))} module calls that do next to nothing"
        ],
        remedy=f"larger micro-batches, and fewer: as large as memory allows; {number(passes)}{each} now",
        seconds=part.seconds, share=part.share, confidence=part.sure(LEAST),
        now=f"{number(passes)} micro-batches{each} a step",
    )  # fmt: skip


MICRO_BATCHES: Rule[Watched] = Rule(
    "micro-batches",
    "Gradients are accumulated over batches that are too small.",
    _find,
    needs=("python.step_trace", "python.torch_trace", "host.gpu_trace"),
    of=("small-batch",),
    sql=BY_STEP,
)
