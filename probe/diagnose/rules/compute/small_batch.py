"""Models whose calls are so small that starting them takes most of their time."""

from __future__ import annotations

from collections.abc import Iterator

from ...figures import ms, number, pct
from ...measures.module_calls import CALLS, Calls, listed, samples_a_step
from ...rule import Finding, Rule
from ...watched import Watched

LEAST = 0.03  # of the step: below that nobody would change the batch


def _find(watched: Watched) -> Iterator[Finding]:
    calls = Calls(watched)
    tiny = calls.tiny
    if not tiny:
        return
    part = calls.part(tiny)
    if part.share < LEAST:
        return
    count = sum(each.calls_a_step for each in tiny)
    call_s = sum(each.call_s * each.calls_a_step for each in tiny) / count
    batch = samples_a_step(watched)
    yield Finding(
        f"Small batch: {pct(part.share)} of each step goes to {number(count)} module calls that do next to nothing.",
        why=[
            f"{ms(part.seconds)} ({ms(part.low)} to {ms(part.high)}) of {ms(watched.step_s)} in calls of {ms(call_s)} "
            "forward, about what it takes to start them"
        ],
        remedy="a larger batch, or torch.compile(model), which makes fewer calls of them",
        seconds=part.seconds, share=part.share, confidence=part.sure(LEAST), where=listed(tiny),
        now=f"{number(batch, 'sample')} a step" if batch else "",
    )  # fmt: skip


SMALL_BATCH: Rule[Watched] = Rule(
    "small-batch",
    "Starting the calls of modules takes most of their time.",
    _find,
    needs=("python.step_trace", "python.torch_trace", "host.gpu_trace"),
    of=("gpu-idle",),
    sql=CALLS,
)
