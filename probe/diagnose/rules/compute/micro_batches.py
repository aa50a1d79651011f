"""Gradients that are accumulated over batches so small that starting their calls takes most of the time."""

from __future__ import annotations

from collections.abc import Iterator

from ...figures import ms, number, pct
from ...measures.backward_passes import PASSES, USES
from ...measures.module_calls import Calls, samples_a_step
from ...rule import Finding, Rule
from ...watched import Watched

LEAST = 0.03  # of the step
_MANY = 4  # passes whose gradients add up; two or three are as often those of several losses
# Several losses of one model go through it once: there are no more micro-batches than calls of what takes longest.
# Their criterion may be a module, too, which is called for each, and a metric one that is called once.
_SQL = (
    f"WITH passes AS ({PASSES}), steps AS (SELECT rank, step, COUNT(*) / {USES} AS passes FROM passes GROUP BY ALL), "
    "outermost AS (SELECT rank, step, root, module, COUNT(*) AS calls, SUM(total_host_duration) AS seconds "
    "FROM python.torch_trace WHERE {window} AND NOT in_eval AND stage = 'forward' AND depth = 0 AND grad "
    "AND NOT recompute GROUP BY ALL), "
    "calls AS (SELECT rank, step, ARG_MAX(calls, seconds) AS calls FROM outermost GROUP BY ALL) "
    "SELECT MEDIAN(LEAST(passes, calls)) AS passes FROM steps JOIN calls USING (rank, step)"
)


def _find(watched: Watched) -> Iterator[Finding]:
    calls = Calls(watched)
    tiny = calls.tiny
    passes = (watched.rows(_SQL)[0]["passes"] or 0.0) if tiny else 0.0
    if passes < _MANY:
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
    sql=_SQL,
)
