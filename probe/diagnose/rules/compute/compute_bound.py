"""Steps that are nothing but arithmetic."""

from __future__ import annotations

from collections.abc import Iterator

from ...figures import pct
from ...measures.module_calls import CALLS, Calls, ModuleCalls
from ...rule import Finding, Rule
from ...watched import Watched

MOST = 0.7  # of the step, from which on nothing else could make it much shorter
_NAMED = 0.3  # of the arithmetic: a type of module that takes less is not where it happens


def _find(watched: Watched) -> Iterator[Finding]:
    forward, backward = watched.phase("forward"), watched.phase("backward")
    share = forward.share + backward.share
    calls = Calls(watched)
    if share < MOST or calls.tiny or calls.is_on_device_with_room():
        return
    yield Finding(
        f"Compute-bound: {pct(share)} of each step is forward and backward of {_models(calls)}.",
        why=[f"forward {pct(forward.share)}, backward {pct(backward.share)}"],
        remedy=f"fewer or cheaper operations: probe {watched.endpoint} capture shows which",
        seconds=forward.seconds + backward.seconds, share=share, severity="hint", where=_where(calls),
    )  # fmt: skip


def _models(calls: Calls) -> str:
    return ", ".join(dict.fromkeys(each.root for each in calls.modules))


def _where(calls: Calls) -> str:
    """The type of module that takes most of it."""
    by_type: dict[str, list[ModuleCalls]] = {}
    for each in calls.modules:
        by_type.setdefault(each.module_type, []).append(each)
    kind, modules = max(by_type.items(), key=lambda item: sum(each.seconds for each in item[1]))
    share = sum(each.seconds for each in modules) / sum(each.seconds for each in calls.modules)
    return f"{pct(share)} of that in {len(modules)} {kind}" if share >= _NAMED else ""


COMPUTE_BOUND: Rule[Watched] = Rule(
    "compute-bound",
    "Forward and backward take most of the step.",
    _find,
    "hint",
    needs=("python.step_trace", "python.torch_trace", "host.gpu_trace"),
    sql=CALLS,
)
