"""Gradients that nobody uses: of modules that no optimizer trains, or of a model in passes for another one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ...discarded_gradients import discarded
from ...figures import ms, pct
from ...ownership import Owners, owners
from ...rule import Finding, Rule
from ...watched import Phase, Watched

LEAST = 0.03  # of the step
_WEIGHTS = 0.5  # of a backward pass: it computes gradients of weights and of inputs, and the latter are needed
_SQL = (
    "SELECT root, CASE MIN(depth) WHEN 0 THEN '' ELSE module END AS module, SUM(host_duration) AS seconds "
    "FROM python.torch_trace WHERE {window} AND stage = 'backward' AND root IS NOT NULL AND NOT in_eval "
    "GROUP BY root, module ORDER BY seconds DESC"
)
_BY_STEP = (
    "SELECT rank, step, SUM(host_duration) AS seconds FROM python.torch_trace "
    "WHERE {window} AND stage = 'backward' AND root IS NOT NULL AND NOT in_eval GROUP BY rank, step"
)
_ORDER = (
    "SELECT root, CASE depth WHEN 0 THEN '' ELSE module END AS module FROM python.torch_trace WHERE {window} AND grad "
    "AND stage = 'forward' AND (rank, step) = (SELECT MIN((rank, step)) FROM python.torch_trace WHERE {window} "
    "AND stage = 'backward') GROUP BY ALL ORDER BY MIN(start_ns)"
)


def _find(watched: Watched) -> Iterator[Finding]:
    rows = watched.rows(_SQL)
    if not rows:
        return
    backward = watched.part("backward", watched.rows(_BY_STEP))

    def part(each: Owners) -> Phase:
        return backward.scaled(_seconds(rows, each) / sum(row["seconds"] for row in rows))

    def matter(found: Sequence[Owners]) -> bool:
        return any(part(each).share >= LEAST for each in found)

    if backward.share >= LEAST:
        found = owners(watched, dict.fromkeys(row["root"] for row in rows), matter)
        for each in found:
            if part(each).share >= LEAST:
                yield _unowned(watched, each, part(each).scaled(1.0 if _come_first(watched, each, found) else _WEIGHTS))
        yield from discarded(watched, backward, LEAST)


def _seconds(rows: Sequence[dict[str, Any]], each: Owners) -> float:
    """What backward takes in modules of which nothing is trained."""
    return sum((row["seconds"] for row in rows if row["root"] == each.root and each.is_unowned(row["module"])), 0.0)


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
        now=f"{what}: requires_grad=True, in no optimizer", saves=part.seconds, assumes="without these gradients",
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
    sql=_SQL,
)
