"""Random models of known times: every module's own time, the totals, and the sums of a pass are what they were."""

from __future__ import annotations

import os
from collections import defaultdict
from typing import Any

import pytest

pytestmark = pytest.mark.alone  # it looks at the clock

torch = pytest.importorskip("torch")

from hypothesis import Phase, example, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from naps import Clock, Nap, RealClock, nap, napping  # noqa: E402
from tapped import tapped  # noqa: E402
from torch import nn  # noqa: E402
from zoo import Does, ModelOutput, Plain, longer  # noqa: E402

from probe.streams import ENGINE, KIND_MASK, SPANS  # noqa: E402

EXAMPLES = int(os.environ.get("PROBE_TEST_EXAMPLES", "60"))
SLACK_NS = 20_000  # of a clock that goes on by 1 ns a reading
Plan = tuple[Any, ...]

ms = st.integers(0, 9)
leaves = st.tuples(st.just("leaf"), ms, ms)
KINDS = ("sequence", "branches", "residual", "features", "held", "keyword", "repeated")


def composite(inner: st.SearchStrategy[Plan]) -> st.SearchStrategy[Plan]:
    return st.tuples(st.sampled_from(KINDS), ms, ms, st.lists(inner, min_size=1, max_size=3))


shared = st.tuples(st.just("shared"), st.integers(0, 1))
plans = st.recursive(leaves | leaves | shared, composite, max_leaves=8)


def model_of(plan: Plan, pool: dict[int, nn.Module]) -> nn.Module:
    """The kind, own times before and after the children (or of a leaf), the children; what is shared is in the pool."""
    if plan[0] == "leaf":
        return Nap(plan[1], plan[2])
    if plan[0] == "shared":
        return pool.setdefault(plan[1], Nap(3, 5))
    kind, before, after, inner = plan
    children = {f"m{place}": model_of(each, pool) for place, each in enumerate(inner)}

    def does(self: Any, x: Any) -> Any:
        x = nap(self, longer(x), before, before)
        return nap(self, FORMS[kind](self, [getattr(self, name) for name in children], x), after, after)

    if kind in ("features", "held"):
        children = {"inside": Does(HOLDERS[kind], **children)}
    return Does(does, **children)


def sequence(self: Any, children: list[Any], x: Any) -> Any:
    for child in children:
        x = child(x)
    return x


FORMS = {
    "sequence": sequence,
    "branches": lambda self, children, x: sum(child(x) for child in children),
    "residual": lambda self, children, x: x + sequence(self, children, x),
    "features": lambda self, children, x: sum(self.inside(x)),
    "held": lambda self, children, x: self.inside(x).hidden,
    "keyword": lambda self, children, x: children[0](x) + sum(child(x=x) for child in children[1:]),
    "repeated": lambda self, children, x: sequence(self, [*children, *children], x),
}


def features(self: Any, x: Any) -> Any:
    found, x = [], nap(self, x, 1, 1)
    for child in self.children():
        x = child(x)
        found.append(x)
    return found


def held(self: Any, x: Any) -> Any:
    y = sequence(self, list(self.children()), nap(self, x, 1, 1))
    return Plain(y, ModelOutput(y * 2, [y]))


HOLDERS = {"features": features, "held": held}


def check(plan: Plan, clock: Clock | RealClock, needs_gradient: bool, slack: Any) -> dict[Any, Any]:
    """Train on a model of the plan for two steps; what the rows say otherwise than the naps.  slack: of one nap."""
    with napping(clock) as naps, tapped() as taps:
        pool: dict[int, nn.Module] = {}
        model = nn.Sequential(model_of(plan, pool), Nap(0, 0))
        for _ in range(2):
            model(torch.ones(2, requires_grad=needs_gradient)).sum().backward()
        rows = taps.table()
        names = {module: taps.raw().log.modules[taps.serial(module)]["name"] for module in model.modules()}
        passes = [row for row in taps.rows(SPANS) if row["flags"] & KIND_MASK == ENGINE]
    times = {(names[module], stage): ns for (module, stage), ns in naps.spent.items()}
    often = {(names[module], stage): n for (module, stage), n in naps.times.items()}
    own, total = summed(rows, "duration"), summed(rows, "total_duration")
    wrong = {key: (times.get(key, 0), own[key]) for key in {*times, *own}}
    for module, name in names.items():
        for stage in ("forward", "backward"):
            below = sum(own[names[each], stage] for each in module.modules())
            if (name, stage) in total and not {*module.modules()} & {*pool.values()}:
                wrong[name, stage, "total"] = (below, total[name, stage])
    taken = sum(row["end_ns"] - row["start_ns"] for row in passes)
    assert sum(ns for (_, stage), ns in own.items() if stage == "backward") == pytest.approx(taken, abs=1000)
    return {
        key: (told, seen)
        for key, (told, seen) in wrong.items()
        if abs(told - seen) > often.get(key, 1) * slack(told / often.get(key, 1))
    }


def summed(rows: list[dict[str, Any]], column: str) -> dict[Any, int]:
    sums: dict[Any, int] = defaultdict(int)
    for row in rows:
        sums[row["module"], row["stage"]] += round(row[column] * 1e9)
    return sums


# one that begins twice a call, with what is called before it too
@example(("sequence", 1, 0, [("shared", 0), ("features", 0, 0, [("leaf", 0, 0), ("shared", 0)])]), True)
@given(plans, st.booleans())
@settings(max_examples=EXAMPLES, deadline=None)
def test_own_times_totals_and_sums_of_random_models(plan: Plan, needs_gradient: bool) -> None:
    assert not check(plan, Clock(), needs_gradient, lambda ns: SLACK_NS)


@given(plans)
@settings(max_examples=max(4, EXAMPLES // 20), deadline=None, database=None, phases=[Phase.generate])
def test_the_same_by_the_clock_on_the_wall(plan: Plan) -> None:
    wrong = set(check(plan, RealClock(), False, lambda ns: max(1e6, 0.05 * ns)))
    for _ in range(20):  # a core that is taken away spoils an attempt; what is wrong is wrong every time
        if not wrong:
            return
        wrong &= set(check(plan, RealClock(), False, lambda ns: max(1e6, 0.05 * ns)))
    raise AssertionError(wrong)
