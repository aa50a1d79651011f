"""A module that runs once for each element of a sequence, one call after the other."""

from __future__ import annotations

from collections.abc import Iterator

from ...figures import ms, number, pct
from ...measures.module_calls import CALLS, Calls, ModuleCalls
from ...measures.places import places
from ...rule import Finding, Rule
from ...watched import Watched

LEAST = 0.03  # of the step
_MANY = 32  # calls in one pass of the model; layers that share a module are fewer
_LONG_S = 1e-3  # a call that takes so long is busy with arithmetic, and one larger call would not be faster
_FUSED = {"GRUCell": "nn.GRU", "LSTMCell": "nn.LSTM", "RNNCell": "nn.RNN"}


def _find(watched: Watched) -> Iterator[Finding]:
    calls = Calls(watched)
    for module in _scanned(calls):
        around = next((each for each in calls.modules if _is(each, module.root, module.parent)), None)
        part = calls.part([*_within(calls, module), *([around] if around else [])])
        if part.share < LEAST:
            continue
        often = number(module.calls_a_step / _passes(calls, module))
        one = _FUSED.get(module.module_type, f"a {module.module_type} that takes it whole")
        yield Finding(
            f"Sequential scan: {module.module} runs {often} times in each pass, one call after the other, "
            f"for {pct(part.share)} of the step.",
            why=[
                f"{ms(part.seconds)} ({ms(part.low)} to {ms(part.high)}) of {ms(watched.step_s)} in "
                f"{number(module.calls_a_step)} calls of {ms(module.median_s)} forward, their backward and the loop"
            ],
            remedy=f"one call for the whole sequence ({one}), or torch.compile({module.root})",
            seconds=part.seconds, share=part.share, confidence=part.sure(LEAST), where=_where(watched),
            now=f"{module.module}: {module.module_type}",
        )  # fmt: skip


def _scanned(calls: Calls) -> list[ModuleCalls]:
    """The outermost modules that are called so often in a pass, and briefly each time; the dearest of each model."""
    found: dict[str, ModuleCalls] = {}
    for each in sorted(calls.modules, key=lambda each: each.depth):  # sorted() keeps the dearest in front
        passes = _passes(calls, each)
        if each.depth and passes and each.calls_a_step > _MANY * passes and not calls.is_on_busy_device():
            call_s = sum(inner.usual_s for inner in _within(calls, each)) / each.calls_a_step
            if call_s < _LONG_S:
                found.setdefault(each.root, each)
    return list(found.values())


def _passes(calls: Calls, module: ModuleCalls) -> float:
    """How often its model is called in a step."""
    return sum(each.calls_a_step for each in calls.modules if each.root == module.root and each.depth == 0)


def _within(calls: Calls, module: ModuleCalls) -> list[ModuleCalls]:
    inside = f"{module.module}."
    return [
        each
        for each in calls.modules
        if _is(each, module.root, module.module) or (each.root == module.root and each.module.startswith(inside))
    ]


def _is(each: ModuleCalls, root: str, module: str | None) -> bool:
    return (each.root, each.module) == (root, module)


def _where(watched: Watched) -> str:
    deepest = None if watched.why_not_profiled else places(watched, "phase = 'forward'").deepest()
    return f"the loop is in {deepest}" if deepest else ""


SEQUENTIAL_SCAN: Rule[Watched] = Rule(
    "sequential-scan",
    "A module runs once for each element of a sequence.",
    _find,
    needs=("python.step_trace", "python.torch_trace", "host.gpu_trace", "python.profile"),
    of=("small-batch", "compute-bound"),
    sql=CALLS,
)
