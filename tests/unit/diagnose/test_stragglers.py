"""Who is late, by how much, how sure that is, and what it is spent on."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from fake_agent import LINEAR, MODEL, FakeAgent, stand
from planted import Planted

from probe import protocol as wire
from probe.connection import Connection
from probe.diagnose.lateness.statistics import by_chance, excess, lateness
from probe.diagnose.lateness.stragglers import stragglers
from probe.errors import SilentError, UsageError
from probe.host.facts import Facts
from probe.snapshot.stacks import Frame
from probe.streams import CORE_WAIT_NS, CPU_NS, ENGINE, EVAL, LOG_GROUP, OPTIMIZER, SAMPLED

Make = Callable[..., FakeAgent]
Connect = Callable[..., Connection]
MS = 1_000_000
ADAM = 1003


def noise(*shape: int) -> Any:
    return 1 + 0.02 * np.random.default_rng(0).standard_normal(shape)


def test_a_rank_that_does_more_than_the_others_is_late() -> None:
    own = noise(4, 30)
    own[2] += 0.05
    first, *rest = lateness([4, 5, 6, 7], own, 1.0)
    assert (first.rank, first.is_late) == (6, True)
    assert first.late_pct == pytest.approx(5, abs=1.5) and first.late_s == pytest.approx(0.05, abs=0.015)
    assert first.steps > 25 and first.confidence > 0.999
    assert not any(each.is_late for each in rest)


def test_where_all_ranks_are_equal_one_is_called_late_in_one_job_of_a_thousand_at_most() -> None:
    """By chance alone; a confidence of 0.95 would allow one of twenty."""
    late = 0
    for seed in range(3000):
        chance = np.random.default_rng(seed)
        ranks, steps = chance.integers(2, 9), chance.integers(20, 61)
        own = 1 + 0.02 * chance.standard_normal((ranks, steps))
        late += any(each.is_late for each in lateness(range(ranks), own, 1.0))
    assert late <= 3


def test_a_few_very_late_steps_do_not_make_a_rank_late() -> None:
    own = noise(2, 30)
    own[1, :5] += 5
    assert not any(each.is_late for each in lateness([0, 1], own, 1.0))


def test_two_late_ranks_are_both_reported() -> None:
    own = noise(8, 30)
    own[[1, 6]] += 0.1
    assert {each.rank for each in lateness(range(8), own, 1.0) if each.is_late} == {1, 6}


def test_excess_is_over_the_median_of_the_others() -> None:
    assert excess(np.array([[1.0], [2.0], [10.0]])).tolist() == [[-5.0], [-3.5], [8.5]]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, 2, 3, 4, 5, 6, 7, 8], 0.00586),  # scipy.stats.wilcoxon(…, alternative="greater", method="approx")
        ([-1.0, 2, 3, -4, 5, 6, 7, 8], 0.03435),
        ([-1.0, 2, -3, 4, -5, 6, -7, 8], 0.38972),
        ([-1.0, -2, -3, -4, -5, -6, -7, 800], 0.91929),
    ],
)
def test_the_test_matches_the_probability_of_chance(values: list[float], expected: float) -> None:
    assert by_chance(np.array(values)) == pytest.approx(expected, abs=1e-5)


def train(
    make: Make,
    rank: int,
    late: str = "",
    by: int = 20,
    steps: int = 12,
    backend: str = "gloo",
    flags: int = SAMPLED,
    **facts: Any,
) -> FakeAgent:
    """Steps of 100 ms of which `late` takes `by` ms longer, in the tenth step three times that: the others wait for it
    at the end of the pass."""
    one = make(rank=rank, world_size=2, distributed=True, **facts)
    one.name_modules()
    one.put(LOG_GROUP, 1, name="0", backend=backend, size=2, rank=rank, ranks=[0, 1])
    takes = dict.fromkeys(("loader", "forward", "backward", "optimizer"), 10) | {"other": 0}
    at = MS
    for step in range(steps):
        begin = at
        takes[late or "nothing"] = 10 + by * (1 + 2 * (step == 10))
        one.load(at, at := at + takes["loader"] * MS)
        one.span(at + MS, at + takes["forward"] * MS - MS, LINEAR)
        one.span(at, at := at + takes["forward"] * MS, MODEL)
        one.mark(at + MS, MODEL, 1)
        one.mark(at + 2 * MS, LINEAR, 1)
        one.mark(at + takes["backward"] * MS - MS, LINEAR, 3)
        start, at = at, at + takes["backward"] * MS
        end = max(at, begin + (70 if late in ("optimizer", "other") else 90) * MS)
        if backend == "gloo":
            one.operate(at, at + MS // 10, end, by="ddp")
        else:
            one.operate(at, at + MS // 10, at + (end - at), by="ddp")
        one.span(start, at := end, 0, ENGINE)
        one.span(at, at := at + takes["optimizer"] * MS, ADAM, OPTIMIZER)
        at += takes["other"] * MS
        one.boundary(at - 1000, flags=flags)
    return one


@pytest.mark.parametrize(
    ("late", "told"),
    [
        ("loader", ["20.0 ms longer waiting for data, 20.0 ms of it for loader"]),
        ("forward", ["20.0 ms longer in forward, 20.0 ms of it in module linear"]),
        ("backward", ["20.0 ms longer in backward, 20.0 ms of it in module linear"]),
        ("optimizer", ["20.0 ms longer in the optimizer"]),
    ],
)
def test_the_report_says_what_the_late_rank_spends_its_time_on(
    agent: Make, connected: Connect, late: str, told: list[str]
) -> None:
    found = connected(train(agent, 0), train(agent, 1, late)).stragglers()
    assert (found.steps, found.step_s) == (11, pytest.approx(0.1, abs=0.021))
    (straggler,) = found.late
    assert straggler.late.rank == 1
    assert straggler.late.late_s == pytest.approx(0.02, abs=1e-5)
    assert straggler.spends == told
    assert straggler.last_pct == (100 if late != "optimizer" else straggler.last_pct)


def test_outside_of_all_phases_the_function_is_named_where_the_rank_is(
    agent: Make, connected: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = train(agent, 0), train(agent, 1, "other", by=10)
    of_library, outermost = Frame("/x/site-packages/torch/a.py", 3, "inner"), Frame("/x/train.py", 1, "<module>")
    own = Frame("/x/train.py", 7, "train"), Frame("/x/data.py", 9, "prepare")
    stand(monkeypatch, {rank: partial(list, (of_library, own[at], outermost)) for at, rank in enumerate(ranks)})
    (straggler,) = connected(*ranks).stragglers().late
    assert straggler.spends == ["20.0 ms longer outside of all phases, mostly in prepare (data.py:9)"]


def test_waits_on_a_device_are_not_a_ranks_own_work(agent: Make, connected: Connect) -> None:
    found = connected(train(agent, 0, backend="nccl"), train(agent, 1, "forward", backend="nccl")).stragglers()
    (straggler,) = found.late
    assert straggler.late.rank == 1 and straggler.late.late_s == pytest.approx(0.02, abs=1e-5)


def computing(*device_ms: float | None) -> Planted:
    """Two ranks of which the second is late in forward by 20 ms; of the first, modules with these times on a device."""
    planted = Planted(agents=[Facts(rank=rank, world_size=2) for rank in (0, 1)])
    planted.steps(100, ranks=(0, 1), noise=0.0, forward=40, comm=20, backward=40)
    planted.database.execute(
        "UPDATE python.step_trace SET sampled = true, forward_duration = 0.04 + 0.02 * rank, other_duration = 0, "
        "comm_duration = 0.02 - 0.02 * rank"
    )
    of = {"module": "layer", "stage": "backward", "device": "cuda:0"}
    times = [(0, each) for each in device_ms] + [(1, 30.0), (1, 30.0)]
    return planted.plant("python.torch_trace", [
        {**of, "rank": rank, "step": step, "duration": ms and ms / 1e3} for step in range(1, 101) for rank, ms in times
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("device_ms", "told"),
    [
        ((20.0, 20.0), ["20.0 ms longer on its device, 20.0 ms of it in backward of layer"]),
        ((20.0,), ["40.0 ms longer on its device, 40.0 ms of it in backward of layer"]),
        ((), ["60.0 ms longer on its device, 60.0 ms of it in backward of layer"]),
        ((None, None), []),
        ((20.0, None), []),
    ],
)
def test_a_device_is_slower_than_those_of_which_the_times_are_known(
    device_ms: tuple[float | None, ...], told: list[str]
) -> None:
    (straggler,) = stragglers(computing(*device_ms), 100, lambda *_: "", is_live=False).late
    assert straggler.late.rank == 1 and "20.0 ms longer in forward" in straggler.spends
    assert [line for line in straggler.spends if "on its device" in line] == told


def test_a_rank_that_waits_for_a_core_is_reported(agent: Make, connected: Connect) -> None:
    ranks = train(agent, 0), train(agent, 1, "forward")
    for rank, one in enumerate(ranks):
        for second in range(1, 10):
            at = second * 100 * MS
            one.sample(at, (CORE_WAIT_NS, at * (30 * rank + 1) // 100), (CPU_NS, at * (99 - 30 * rank) // 100))
    (straggler,) = connected(*ranks).stragglers().late
    assert straggler.spends[1:] == [
        "31 % of the time in which it has work waiting for a core that other work occupies (others: 1 %)"
    ]


def test_a_rank_that_computes_more_and_so_waits_longer_for_cores_is_not_said_to_wait(
    agent: Make, connected: Connect
) -> None:
    ranks = train(agent, 0), train(agent, 1, "forward")
    for rank, one in enumerate(ranks):
        for second in range(1, 10):
            at = second * 100 * MS
            one.sample(at, (CORE_WAIT_NS, at * (20 * rank + 5) // 100), (CPU_NS, at * (60 * rank + 15) // 100))
    (straggler,) = connected(*ranks).stragglers().late
    assert len(straggler.spends) == 1


def test_a_part_is_never_more_than_its_phase(agent: Make, connected: Connect) -> None:
    (straggler,) = connected(train(agent, 0), train(agent, 1, "forward")).stragglers().late
    phase, part = re.findall(r"([0-9.]+) ms", straggler.spends[0])
    assert float(part) <= float(phase)


def test_a_job_that_has_stopped_is_said_to_stand(agent: Make, connected: Connect) -> None:
    ranks = train(agent, 0), train(agent, 1, "forward")
    connection = connected(*ranks)
    connection.stragglers()
    (note,) = [note for note in connection.notes if note.startswith("No step has ended for")]
    assert note.endswith("hang")


def test_only_the_last_steps_without_evals_are_compared(agent: Make, connected: Connect) -> None:
    ranks = train(agent, 0, steps=40), train(agent, 1, steps=40)
    ranks[1].span(3955 * MS, 3960 * MS, 1, EVAL)
    assert connected(*ranks).stragglers(10).steps == 9


def test_balanced_ranks_are_not_late(agent: Make, connected: Connect) -> None:
    found = connected(train(agent, 0), train(agent, 1)).stragglers()
    assert not found.late and [each.spends for each in found.ranks] == [[], []]


def test_too_few_steps_are_an_error(agent: Make, connected: Connect) -> None:
    with pytest.raises(SilentError, match="for only 3 steps, 8 are needed") as failure:
        connected(train(agent, 0, steps=4), train(agent, 1, steps=4)).stragglers()
    assert failure.value.code == "few-steps"
    with pytest.raises(SilentError, match="for only 0 steps"):
        connected(train(agent, 0, collectives_ns=None), train(agent, 1)).stragglers()
    with pytest.raises(SilentError, match="for only 0 steps"):
        connected(train(agent, 0), agent(rank=1, world_size=2, distributed=True)).stragglers()


def test_a_single_rank_cannot_be_compared(agent: Make, connected: Connect) -> None:
    with pytest.raises(UsageError, match="Only one of 2 ranks is attached here"):
        connected(train(agent, 0)).stragglers()
    with pytest.raises(UsageError, match="Only one rank: nothing to compare") as failure:
        connected(train(lambda **facts: agent(**facts | {"world_size": 1}), 0)).stragglers()
    assert failure.value.code == "one-rank"
    ranks = train(agent, 0), train(agent, 1)
    ranks[1].deaf |= {wire.SNAPSHOT}
    with pytest.raises(SilentError, match=r"No other rank to compare: answered 1/2 ranks in .* s, silent: 1"):
        connected(*ranks, timeout=1.0).stragglers()


def test_with_few_sampled_steps_forward_is_not_separated_from_the_rest(agent: Make, connected: Connect) -> None:
    ranks = train(agent, 0, flags=0), train(agent, 1, "forward", flags=0)
    (straggler,) = connected(*ranks).stragglers().late
    assert straggler.spends == ["20.0 ms longer in forward or outside of all phases"]
