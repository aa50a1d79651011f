"""Gradients that nobody uses: of modules that no optimizer trains, or of a model in passes for another one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...figures import ms, pct
from ...measures.discarded_gradients import UPDATES, discarded
from ...measures.module_calls import CALLS, Calls, ModuleCalls, of_steps, saved
from ...measures.ownership import ASKS, Owners, owners
from ...rule import Finding, Rule
from ...watched import Phase, Watched

LEAST = 0.03  # of the step
_WEIGHTS = 0.5  # of a backward pass: it computes gradients of weights and of inputs, and the latter are needed
_ORDER = (
    "SELECT root, CASE WHEN depth = 0 AND module = module_type THEN '' ELSE module END AS module "
    "FROM python.torch_trace WHERE {window} AND grad "
    "AND stage = 'forward' AND (rank, step) = (SELECT MIN((rank, step)) FROM python.torch_trace WHERE {window} "
    "AND stage = 'backward') GROUP BY ALL ORDER BY MIN(start_ns)"
)


def _find(watched: Watched) -> Iterator[Finding]:
    modules = [each for each in Calls(watched).modules if each.backward_s]
    backward = of_steps(watched, "backward_s", "backward")
    if not modules or backward.share < LEAST:
        return

    def part(each: Owners) -> Phase:
        return backward.scaled(_seconds(modules, each) / sum(module.backward_s for module in modules))

    roots = list(dict.fromkeys(module.root for module in modules))
    found = owners(watched, roots, lambda told: any(part(each).share >= LEAST for each in told))
    for each in found:
        if part(each).share >= LEAST:
            yield _unowned(watched, each, part(each).scaled(1.0 if _come_first(watched, each, found) else _WEIGHTS))
    if sum(module.depth == 0 for module in modules) > 1:
        yield from discarded(watched, backward, LEAST)


def _seconds(modules: Sequence[ModuleCalls], each: Owners) -> float:
    """What backward takes in modules of which nothing is trained."""
    return sum(
        module.backward_s
        for module in modules
        if module.root == each.root and each.is_unowned("" if module.is_root else module.module)
    )


def _unowned(watched: Watched, each: Owners, part: Phase) -> Finding:
    names = [".".join(filter(None, (each.root, name))) for name in each.outermost]
    what = names[0] if len(names) == 1 else f"{len(names)} modules of {each.root}"
    freeze = f"{names[0]}.requires_grad_(False)"
    # DistributedDataParallel waits for the gradient of every parameter that had one when it was made.
    is_live = len(names) == 1 and len(watched.ranks) == 1 and not any(map(str.isdigit, names[0].split(".")))
    return Finding(
        f"Frozen with gradients: {pct(part.share)} of each step computes gradients of {what}, "
        "which no optimizer updates.",
        why=[f"{ms(part.seconds)} ({ms(part.low)} to {ms(part.high)}) of {ms(watched.step_s)}"],
        remedy=f'probe {watched.endpoint} eval "{freeze}"' if is_live else f"{what}: requires_grad_(False)",
        effect="takes effect with the next step" if is_live else "",
        seconds=part.seconds, share=part.share, confidence=part.sure(LEAST), where=what,
        now=f"{what}: requires_grad=True, in no optimizer", saves=saved(watched, part.seconds),
        assumes="without these gradients",
    )  # fmt: skip


def _come_first(watched: Watched, each: Owners, found: Sequence[Owners]) -> bool:
    """Whether nothing that is trained runs before these modules, so that no gradient has to go through them."""
    trained = {(other.root, module) for other in found for module in other.owned}
    is_past = False
    for row in watched.rows(_ORDER):
        is_past = is_past or (row["root"], row["module"]) in trained
        if is_past and row["root"] == each.root and each.is_unowned(row["module"]):
            return False
    return True


FROZEN_WITH_GRADIENTS: Rule[Watched] = Rule(
    "frozen-with-gradients",
    "Gradients are computed that no optimizer uses.",
    _find,
    needs=("python.step_trace", "python.torch_trace"),
    of=("compute-bound",),
    sql=CALLS,
    asks=(*ASKS, UPDATES),
)
