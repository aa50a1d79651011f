"""Rules on several ranks, on planted rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from planted import MS, Planted

from probe.diagnose.rules.ranks.communication_bound import COMMUNICATION_BOUND
from probe.diagnose.rules.ranks.no_sync_missing import NO_SYNC_MISSING
from probe.diagnose.rules.ranks.small_buckets import SMALL_BUCKETS
from probe.diagnose.rules.ranks.straggler import STRAGGLER
from probe.diagnose.why import judge
from probe.errors import UsageError
from probe.host.facts import Facts

MB, STEP_NS, COUNT = 1 << 20, 100_000_000, 120
RULES = (COMMUNICATION_BOUND, NO_SYNC_MISSING, SMALL_BUCKETS)


def job(ranks: int = 2, **phases: float) -> Planted:
    planted = Planted(agents=[Facts(rank=rank, world_size=ranks) for rank in range(ranks)])
    return planted.steps(COUNT, ranks=range(ranks), **phases)


def sends(
    planted: Planted, *, a_step: int, mb: float, ms: float, wait_ms: float = 0.0, micro_steps: int = 1,
    source: str = "ddp", backend: str = "gloo", unlike: float = 0.0, kind: str = "all_reduce",
) -> Planted:  # fmt: skip
    """Each step so many all_reduces in each of the first `micro_steps` of its backward passes, of which each takes so
    long after the last of two ranks has arrived, and one rank waits for the other before; unlike: how much larger those
    of the second pass are."""
    seen, whole = [], []
    for step in range(1, COUNT + 1):
        for place in range(micro_steps * a_step):
            micro = place // a_step
            size = int(MB * mb * (1 + unlike * micro))
            at = step * STEP_NS + micro * STEP_NS // 8 + 2000 + place
            whole.append({"step": step, "operation_type": kind, "group_size": 2, "bytes": size,
                          "duration_ms": ms, "wait_ms": [0.0, wait_ms]})  # fmt: skip
            seen += [
                {"rank": rank, "step": step, "seq": place, "start_ns": at, "source": source, "backend": backend,
                 "operation_type": kind, "bytes": size, "duration_ms": ms + rank * wait_ms, "group_size": 2,
                 "state": "done"}
                for rank in (0, 1)
            ]  # fmt: skip
    return planted.plant("python.nccl_trace", seen).plant("probe.collectives", whole)


def passes(
    planted: Planted, micro_steps: int, roots: Sequence[str] = ("model",), updated_after: Sequence[int] = ()
) -> Planted:
    """Passes that go through these models in turn; updated_after: after how many of them an optimizer steps."""
    rows = [
        {"rank": rank, "step": step, "stage": stage, "micro_step": micro, "depth": 0,
         "root": roots[micro % len(roots)] if stage == "backward" else None,
         "start_ns": step * STEP_NS + (2 * micro - (stage == "step")) * STEP_NS // 16}
        for step in range(1, COUNT + 1) for rank in (0, 1)
        for stage, micros in (("backward", range(micro_steps)), ("step", updated_after)) for micro in micros
    ]  # fmt: skip
    return planted.plant("python.torch_trace", rows)


def codes(planted: Planted) -> list[str]:
    return [each.code for each in judge(planted.watched(), RULES).findings]


def test_large_operations_are_what_a_step_waits_for() -> None:
    planted = passes(sends(job(forward=20, backward=30, comm=50), a_step=2, mb=30, ms=25, wait_ms=0), 1)
    (found,) = COMMUNICATION_BOUND.find(planted.watched())
    assert found.sentence == "Communication-bound: 50 % of each step goes into collectives that all ranks have reached."
    assert found.seconds == pytest.approx(0.05, rel=0.02) and found.now == "2.0 all_reduce of 30 MB a step (gloo)"
    assert codes(planted) == ["communication-bound"]


def test_communication_that_costs_what_is_usual_is_a_hint() -> None:
    planted = passes(sends(job(forward=35, backward=50, comm=15), a_step=1, mb=30, ms=15, wait_ms=0), 1)
    (found,) = judge(planted.watched(), [COMMUNICATION_BOUND]).findings
    assert found.severity == "hint" and found.finding.share == pytest.approx(0.15, rel=0.02)


def test_what_ranks_wait_for_each_other_is_not_communication() -> None:
    planted = passes(sends(job(forward=40, backward=40, comm=20), a_step=1, mb=1, ms=1, wait_ms=40), 1)
    assert not list(COMMUNICATION_BOUND.find(planted.watched()))


def test_communication_that_is_hidden_is_left_alone() -> None:
    planted = passes(sends(job(forward=40, backward=58, comm=1.5), a_step=4, mb=25, ms=12, wait_ms=1), 1)
    assert codes(planted) == []


def test_buffers_that_ddp_sends_before_each_pass_can_be_kept_while_it_runs() -> None:
    planted = sends(job(forward=50, comm=50), a_step=1, mb=1, ms=5)
    sends(planted, a_step=9, mb=1, ms=5, kind="broadcast")
    (found,) = COMMUNICATION_BOUND.find(planted.watched(read=lambda expression: "['model']"))
    assert found.remedy == 'probe 4242 eval "model.broadcast_buffers = False"'
    assert found.saves == pytest.approx(0.045, rel=0.02)


@pytest.mark.parametrize(
    ("source", "kind", "a_step", "told"),
    [
        ("ddp", "all_reduce", 2, "bf16_compress_hook"),
        ("fsdp", "all_gather", 2, "reduce_dtype"),
        ("functional", "all_reduce", 2, "fewer and larger operations"),
        ("pipelining", "send", 20, "fewer and larger operations"),
        ("user", "all_reduce", 2, "torch.bfloat16, or less often"),
        ("user", "all_reduce", 12, "one operation for all tensors"),
        ("user", "barrier", 2, "fewer barriers"),
    ],
)
def test_what_is_to_be_done_is_what_its_source_can_do(source: str, kind: str, a_step: int, told: str) -> None:
    mb = 0.0 if kind == "barrier" else 30.0
    planted = sends(
        job(forward=20, backward=30, comm=50), a_step=a_step, mb=mb, ms=50 / a_step, source=source, kind=kind
    )
    (found,) = COMMUNICATION_BOUND.find(planted.watched())
    assert told in found.remedy and ("ddp_comm_hooks" in found.remedy) == (source == "ddp")
    assert ("MB" in found.now) == (kind != "barrier")


def on_device(ms: int) -> list[dict[str, Any]]:
    """A backward of that length on a device, in each step of both ranks."""
    return [
        {"rank": rank, "step": step, "stage": "backward", "micro_step": 0, "device": "cuda:0",
         "start_ns": step * STEP_NS, "duration": ms * MS}
        for rank in (0, 1) for step in range(1, COUNT)
    ]  # fmt: skip


def test_on_a_device_communication_counts_that_nothing_can_hide() -> None:
    planted = sends(job(forward=4, backward=4, optimizer=2, other=90), a_step=1, mb=100, ms=80, backend="nccl")
    (found,) = COMMUNICATION_BOUND.find(planted.plant("python.torch_trace", on_device(30)).watched())
    assert found.seconds == pytest.approx(0.05, rel=0.02)


def test_on_a_device_steps_with_modules_that_were_not_timed_do_not_tell() -> None:
    planted = sends(job(forward=4, backward=4, optimizer=2, other=90), a_step=1, mb=100, ms=80, backend="nccl")
    planted.plant("python.torch_trace", on_device(30))
    planted.plant("python.torch_trace", [row | {"duration": None} for row in on_device(30) if row["step"] % 2])
    planted.database.execute(
        "UPDATE python.torch_trace SET duration = 0.001 WHERE step % 2 = 1 AND duration IS NOT NULL"
    )
    (found,) = COMMUNICATION_BOUND.find(planted.watched())
    assert found.seconds == pytest.approx(0.05, rel=0.02)


def test_communication_takes_no_longer_than_the_step() -> None:
    """A host that waits for the device has in its own phase what the device shows, too."""
    planted = sends(job(forward=4, backward=4, comm=92), a_step=1, mb=100, ms=95, backend="nccl")
    (found,) = COMMUNICATION_BOUND.find(planted.plant("python.torch_trace", on_device(2)).watched())
    assert found.share == pytest.approx(1.0)


def test_many_small_operations_of_ddp_are_the_cause() -> None:
    planted = passes(sends(job(forward=20, backward=30, comm=50), a_step=50, mb=0.02, ms=1), 1)
    told = judge(planted.watched(), RULES)
    assert told.code == "small-buckets" and [each.code for each in told.findings[0].consequences] == [
        "communication-bound"
    ]
    assert told.sentence == "Small buckets: DDP sends 50 gradients of 0.02 MB a step, which takes 50 % of it."


def test_what_others_than_ddp_send_is_not_laid_to_its_buckets() -> None:
    planted = sends(job(forward=20, backward=30, comm=50), a_step=50, mb=0.02, ms=0.02)
    sends(planted, a_step=1, mb=50, ms=49, source="user", kind="all_gather")
    told = judge(passes(planted, 1).watched(), RULES)
    assert [each.code for each in told.findings] == ["communication-bound"]
    assert "all_gather of 50 MB" in told.findings[0].finding.now


@pytest.mark.parametrize(
    "kind", [{"a_step": 2, "mb": 0.3}, {"a_step": 12, "mb": 25.0}, {"a_step": 50, "mb": 0.02, "source": "user"}]
)
def test_buckets_of_a_small_model_or_of_the_usual_size_are_left_alone(kind: dict[str, float]) -> None:
    planted = passes(sends(job(forward=20, backward=30, comm=50), ms=1, **kind), 1)  # type: ignore[arg-type]
    assert codes(planted) == ["communication-bound"]


def test_gradients_that_are_averaged_in_each_backward_pass_are_the_cause() -> None:
    planted = passes(sends(job(forward=20, backward=40, comm=40), a_step=2, mb=10, ms=5, micro_steps=4), 4)
    told = judge(planted.watched(), RULES)
    assert [each.code for each in told.findings] == ["no-sync-missing"]
    assert told.sentence == "Missing no_sync: DDP averages the gradients 4 times a step, which takes 30 % of it."
    saves = told.findings[0].finding.saves
    assert saves == pytest.approx(0.03, rel=0.02)


@pytest.mark.parametrize(
    ("roots", "updated_after"), [("ab", [2]), ("ab", [1, 2]), ("a", [1, 2])], ids=["towers", "models", "optimizers"]
)
def test_gradients_of_which_each_pass_makes_others_are_averaged_as_often(roots: str, updated_after: list[int]) -> None:
    planted = sends(job(forward=20, backward=40, comm=40), a_step=2, mb=10, ms=5, micro_steps=2)
    assert codes(passes(planted, 2, roots, updated_after)) == ["communication-bound"]


@pytest.mark.parametrize(
    ("roots", "updated_after"), [("ab", [4]), ("a", [2, 4])], ids=["two models in turn", "two updates"]
)
def test_of_gradients_that_are_used_twice_a_step_half_are_too_many(roots: str, updated_after: list[int]) -> None:
    planted = sends(job(forward=20, backward=40, comm=40), a_step=2, mb=10, ms=5, micro_steps=4)
    (found,) = NO_SYNC_MISSING.find(passes(planted, 4, roots, updated_after).watched())
    assert found.saves == pytest.approx(0.02, rel=0.02)


@pytest.mark.parametrize(("micro_steps", "unlike"), [(1, 0.0), (2, 0.5)], ids=["no_sync", "two models"])
def test_gradients_that_are_averaged_once_are_left_alone(micro_steps: int, unlike: float) -> None:
    planted = sends(
        job(forward=20, backward=40, comm=40), a_step=2, mb=10, ms=5, micro_steps=micro_steps, unlike=unlike
    )
    assert codes(passes(planted, 2)) == ["communication-bound"]


@pytest.mark.parametrize("rule", [*RULES, STRAGGLER], ids=lambda rule: rule.code)
def test_with_one_rank_there_is_nothing_to_compare(rule: object) -> None:
    watched = job(1, forward=50, comm=50).watched()
    with pytest.raises(UsageError, match="Only one rank"):
        list(rule.find(watched))  # type: ignore[attr-defined]


def test_a_late_rank_is_found_with_its_function_and_the_others_wait_is_its_consequence() -> None:
    planted = Planted(agents=[Facts(rank=rank, world_size=2) for rank in (0, 1)])
    for rank, (other, comm) in enumerate(((10, 40), (50, 0))):
        planted.steps(COUNT, ranks=[rank], forward=20, backward=20, other=other, comm=comm)
    main = "main (train.py:9)"
    forward = ("forward", 5.0, (main, "step (train.py:7)", "forward (train.py:3)"))
    planted.profile(forward, ("comm", 4.0, (main,)), rank=0)
    planted.profile(forward, ("other", 4.0, (main, "write (train.py:5)")), rank=1)
    (found,) = STRAGGLER.find(planted.watched())
    assert found.ranks == (1,) and found.where == "write (train.py:5)"
    assert found.sentence.startswith("Straggler: rank 1 is late by 40.")
    assert found.remedy == "what rank 1 does in write (train.py:5): on all ranks alike, or beside the training"
    assert found.saves == pytest.approx(0.04, rel=0.02)
    assert found.assumes == "if rank 1 were no slower than the slowest other"


def test_with_a_second_late_rank_the_first_saves_what_it_is_later() -> None:
    planted = Planted(agents=[Facts(rank=rank, world_size=3) for rank in range(3)])
    for rank, (other, comm) in enumerate(((10, 40), (50, 0), (40, 10))):
        planted.steps(COUNT, ranks=[rank], forward=20, backward=20, other=other, comm=comm, noise=0.0)
    found = next(each for each in STRAGGLER.find(planted.watched()) if each.ranks == (1,))
    assert found.seconds == pytest.approx(0.025) and found.saves == pytest.approx(0.01)
