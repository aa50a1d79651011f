"""Rules on what the model computes, on planted rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from planted import MS, Planted

from probe.diagnose.measures.live_values import filled, of_frame
from probe.diagnose.measures.module_calls import Calls
from probe.diagnose.rule import Finding, Rule
from probe.diagnose.rules import ON_TABLES
from probe.diagnose.rules.compute.compute_bound import COMPUTE_BOUND
from probe.diagnose.rules.compute.frozen_with_gradients import FROZEN_WITH_GRADIENTS
from probe.diagnose.rules.compute.micro_batches import MICRO_BATCHES
from probe.diagnose.rules.compute.no_mixed_precision import NO_MIXED_PRECISION
from probe.diagnose.rules.compute.optimizer_unfused import OPTIMIZER_UNFUSED
from probe.diagnose.rules.compute.recompilation import RECOMPILATION
from probe.diagnose.rules.compute.recompute import RECOMPUTE
from probe.diagnose.rules.compute.sequential_scan import SEQUENTIAL_SCAN
from probe.diagnose.rules.compute.small_batch import SMALL_BATCH
from probe.diagnose.watched import Watched
from probe.diagnose.why import judge
from probe.errors import SilentError, UsageError
from probe.host.facts import Facts

STEPS = 100
SAMPLED = [step for step in range(1, STEPS + 1) if step // 10 % 2 == 0]


@dataclass(frozen=True)
class Module:
    """What is planted of one: its calls in a pass, and what each takes, forward and backward, without others inside."""

    name: str
    calls: int
    forward_ms: float
    backward_ms: float
    parent: str | None = "Net"
    root: str = "model"
    kind: str = "Linear"
    device: str = "cpu"

    def rows(self, step: int, micro_step: int) -> Iterator[dict[str, Any]]:
        of = {"step": step, "micro_step": micro_step, "root": self.root, "module": self.name, "module_type": self.kind,
              "parent": self.parent, "depth": int(self.parent is not None), "recompute": False, "device": self.device,
              "training": True, "grad": True}  # fmt: skip
        for _ in range(self.calls):
            forward = dict.fromkeys(("host_duration", "total_host_duration"), self.forward_ms * MS)
            yield {**of, "stage": "forward", **forward, "start_ns": 1}
            yield {**of, "stage": "backward", "host_duration": self.backward_ms * MS, "start_ns": 2}


def net(root: str = "model", around_ms: float = 0.05) -> Module:
    return Module("Net", 1, around_ms, around_ms, parent=None, root=root, kind="Net")


def job(*modules: Module, passes: int = 1, **more: float) -> Planted:
    """Steps whose forward and backward are these modules, and other phases in ms."""
    forward, backward = (
        passes * sum(each.calls * ms for each, ms in ((each, getattr(each, name)) for each in modules))
        for name in ("forward_ms", "backward_ms")
    )
    planted = Planted().steps(STEPS, noise=0.01, forward=forward, backward=backward, **more)
    rows = (row for step in SAMPLED for micro in range(passes) for each in modules for row in each.rows(step, micro))
    return planted.plant("python.torch_trace", rows)


def found(rule: Rule[Watched], planted: Planted, read: Callable[[str], str | None] = lambda _: None) -> list[Finding]:
    return list(rule.find(planted.watched(last=STEPS, read=read)))


def answers(value: object) -> Callable[[str], str | None]:
    return lambda expression: repr(value)


LAYERS = [net(around_ms=0.3), Module("layers.0", 50, 0.02, 0.04)]
HONEST = [net(around_ms=0.3), Module("conv", 4, 5, 9, kind="Conv2d"), Module("act", 40, 0.03, 0.03, kind="ReLU")]
CELL = [net(around_ms=2), Module("cell", 100, 0.06, 0.1, kind="GRUCell")]


def test_a_model_of_tiny_calls_is_found_with_their_number_and_time() -> None:
    (told,) = found(SMALL_BATCH, job(*LAYERS, other=0.4))
    assert told.sentence == "Small batch: 90 % of each step goes to 51 module calls that do next to nothing."
    assert told.seconds == pytest.approx(3.6e-3, rel=0.02) and told.where == "Linear, Net"
    assert "in calls of 0.02 ms forward" in told.why[0] and told.now == "32 samples a step"


@pytest.mark.parametrize("modules", [HONEST, [net(), Module("block", 50, 2, 4)], [net(), Module("a", 5, 0.02, 0.04)]])
def test_models_of_large_calls_or_few_are_no_small_batch(modules: list[Module]) -> None:
    assert not found(SMALL_BATCH, job(*modules))


def test_tiny_calls_on_a_device_that_is_busy_or_unknown_only_start_its_work() -> None:
    planted = job(*(Module(each.name, each.calls, each.forward_ms, each.backward_ms, each.parent, device="cuda:0")
                    for each in LAYERS))  # fmt: skip
    assert not found(SMALL_BATCH, planted)
    planted.plant("host.gpu_trace", [{"step": step, "gpu_util_pct": 30.0} for step in SAMPLED])
    assert found(SMALL_BATCH, planted)
    planted.plant("host.gpu_trace", [{"step": step, "gpu_util_pct": 100.0} for step in SAMPLED for _ in range(9)])
    assert not found(SMALL_BATCH, planted)


def in_eval_mode(planted: Planted, where: str = "true") -> Planted:
    planted.database.execute(f"UPDATE python.torch_trace SET training = false WHERE {where}")
    return planted


def test_a_model_that_is_trained_in_eval_mode_is_judged_like_any_other() -> None:
    (small,) = found(SMALL_BATCH, in_eval_mode(job(*LAYERS, other=0.4)))
    assert small.sentence == "Small batch: 90 % of each step goes to 51 module calls that do next to nothing."
    (bound,) = found(COMPUTE_BOUND, in_eval_mode(job(*HONEST, optimizer=5)))
    assert bound.sentence.startswith("Compute-bound: 92 % of each step is forward and backward of model")


def trained(planted: Planted) -> dict[tuple[str, str], tuple[float, float]]:
    """Of each module that trains, the calls and the seconds."""
    modules = Calls(planted.watched(last=STEPS)).modules
    return {(each.root, each.module): (each.calls_a_step, round(each.seconds, 9)) for each in modules}


def test_calls_in_eval_mode_without_a_backward_pass_or_of_a_model_in_training_mode_train_nothing() -> None:
    rows = "FROM python.torch_trace WHERE stage = 'forward'"
    planted, alone = job(*HONEST), trained(job(*HONEST))
    planted.database.execute(f"INSERT INTO python.torch_trace SELECT * REPLACE (false AS training) {rows}")  # validated
    planted.database.execute(
        f"INSERT INTO python.torch_trace SELECT * REPLACE (false AS training, 'teacher' AS root) {rows} AND training"
    )
    assert trained(planted) == alone


def test_a_pass_through_a_loss_in_eval_mode_trains_what_is_in_training_mode() -> None:
    """The mode of a pass is that of the last call before it."""
    planted = job(*HONEST, net("loss"))
    usual = trained(planted)
    assert trained(in_eval_mode(planted, "stage = 'backward' OR root = 'loss'")) == usual


def test_a_cell_that_runs_along_a_sequence_is_found_and_explains_the_small_calls() -> None:
    planted = job(*CELL, optimizer=2).profile(("forward", 5.0, ("main (train.py:9)", "Net.forward (net.py:30)")))
    diagnosis = judge(planted.watched(last=STEPS), [SMALL_BATCH, SEQUENTIAL_SCAN])
    (cause,) = diagnosis.findings
    assert cause.code == "sequential-scan" and [each.code for each in cause.consequences] == ["small-batch"]
    assert cause.finding.sentence.startswith(
        "Sequential scan: cell runs 100 times in each pass, one call after the other"
    )
    assert cause.finding.share == pytest.approx(20 / 22, rel=0.02) and "(nn.GRU)" in cause.finding.remedy
    assert cause.finding.where == "the loop is in Net.forward (net.py:30)"


def test_cells_that_are_large_or_few_and_models_called_often_are_no_scan() -> None:
    assert not found(SEQUENTIAL_SCAN, job(net(), Module("cell", 100, 4, 8)))
    assert not found(SEQUENTIAL_SCAN, job(net(), Module("cell", 8, 0.06, 0.1)))
    assert not found(SEQUENTIAL_SCAN, job(net(), Module("cell", 8, 0.06, 0.1), passes=20))


def test_tiny_micro_batches_are_found_and_explain_the_small_calls() -> None:
    diagnosis = judge(job(*LAYERS, passes=8).watched(last=STEPS), [SMALL_BATCH, MICRO_BATCHES])
    (cause,) = diagnosis.findings
    assert cause.code == "micro-batches" and [each.code for each in cause.consequences] == ["small-batch"]
    assert cause.finding.now == "8 micro-batches of 4 samples a step"


@pytest.mark.parametrize(("modules", "passes"), [(HONEST, 8), (LAYERS, 2)])
def test_micro_batches_that_are_large_or_two_are_left_alone(modules: list[Module], passes: int) -> None:
    assert not found(MICRO_BATCHES, job(*modules, passes=passes))


def test_passes_of_several_losses_with_an_optimizer_each_are_no_micro_batches() -> None:
    planted = job(*LAYERS, passes=6)
    planted.plant("python.torch_trace", [
        {"step": step, "micro_step": 1 + micro, "stage": "step"} for step in SAMPLED for micro in range(6)
    ])  # fmt: skip
    diagnosis = judge(planted.watched(last=STEPS), [SMALL_BATCH, MICRO_BATCHES])
    assert [each.code for each in diagnosis.findings] == ["small-batch"]


def test_passes_of_several_models_before_one_update_of_all_are_no_micro_batches() -> None:
    planted = job(*LAYERS, passes=4)
    planted.database.execute("UPDATE python.torch_trace SET root = root || micro_step")
    assert not found(MICRO_BATCHES, planted)


def test_passes_of_several_losses_of_one_call_are_no_micro_batches() -> None:
    planted = job(*LAYERS, passes=8)
    planted.database.execute("DELETE FROM python.torch_trace WHERE stage = 'forward' AND depth = 0 AND micro_step > 0")
    assert not found(MICRO_BATCHES, planted)


@pytest.mark.parametrize("root", ["model", "criterion"])
def test_nor_are_they_where_one_module_computes_all_of_them(root: str) -> None:
    criterion = Module("CrossEntropyLoss", 1, 0.005, 0.005, parent=None, root=root, kind="CrossEntropyLoss")
    planted = job(*LAYERS, criterion, passes=8)
    assert found(MICRO_BATCHES, planted)[0].now == "8 micro-batches of 4 samples a step"
    planted.database.execute("DELETE FROM python.torch_trace WHERE stage = 'forward' AND module = 'Net' AND micro_step")
    assert not found(MICRO_BATCHES, planted)


def test_micro_batches_beside_a_module_that_is_called_once_a_step_are_found() -> None:
    metric = Module("Accuracy", 1, 0.02, 0.02, parent=None, root="metric", kind="Accuracy")
    planted = job(*LAYERS, passes=8)
    planted.plant("python.torch_trace", (
        row for step in SAMPLED for row in metric.rows(step, 0) if row["stage"] == "forward"
    ))  # fmt: skip
    assert found(MICRO_BATCHES, planted)[0].now == "8 micro-batches of 4 samples a step"


def test_accumulation_with_two_optimizers_is_of_all_its_micro_batches() -> None:
    planted = job(*LAYERS, passes=8)
    planted.plant("python.torch_trace", [
        {"step": step, "micro_step": 8, "stage": "step"} for step in SAMPLED for _ in range(2)
    ])  # fmt: skip
    assert found(MICRO_BATCHES, planted)[0].now == "8 micro-batches of 4 samples a step"


def test_arithmetic_is_a_hint_unless_it_is_starting_calls() -> None:
    (told,) = found(COMPUTE_BOUND, job(*HONEST, optimizer=5))
    assert told.severity == "hint" and told.where.endswith("of that in 1 Conv2d")
    assert told.sentence.startswith("Compute-bound: 92 % of each step is forward and backward of model")
    assert not found(COMPUTE_BOUND, job(*LAYERS)) and not found(COMPUTE_BOUND, job(*HONEST, data=60))


def recomputing(used_pct: float) -> Planted:
    planted = job(*HONEST)
    again = {"root": "model", "module": "conv", "stage": "forward", "recompute": True, "host_duration": 10 * MS}
    planted.plant("python.torch_trace", [{**again, "step": step} for step in SAMPLED])
    return planted.plant("host.process_trace", [{"step": 5, "host_memory_used_pct": used_pct}])


def checkpoints(expression: str) -> str | None:
    """Reads a model that has a switch."""
    return "[('', 'checkpointing')]" if "named_modules" in expression else None


def test_checkpointing_without_need_is_found() -> None:
    (told,) = found(RECOMPUTE, recomputing(20), checkpoints)
    assert told.sentence == "Recompute: 17 % of each step runs forward passes again, and 80 % of the memory is free."
    assert told.remedy == "no activation checkpointing here, if there is room for what it saves, which is not known"
    assert told.saves == told.seconds == pytest.approx(0.01, rel=0.02) and not told.effect


def of_device(planted: Planted, used_mb: float, device: str = "cuda:0") -> Planted:
    """One of 80,000 MB."""
    memory = {"memory_total_mb": 80_000.0, "memory_used_mb": used_mb}
    return planted.plant("host.gpu_trace", [{"step": 5, "start_ns": 1, "device": device, **memory}])


def on_cuda(planted: Planted, factor: float | None) -> Planted:
    """Its calls take so many times as long on the device as it takes to start them; None: that is not known."""
    duration = "NULL" if factor is None else f"{factor} * host_duration"
    total = "NULL" if factor is None else f"{factor} * total_host_duration"
    planted.database.execute(
        f"UPDATE python.torch_trace SET device = 'cuda:0', duration = {duration}, total_duration = {total}"
    )
    return planted


def test_what_is_recomputed_on_a_device_costs_the_time_of_the_device_and_saves_nobody_knows_what() -> None:
    (told,) = found(RECOMPUTE, of_device(on_cuda(recomputing(20), 2), 20_000))
    assert told.sentence.startswith("Recompute: 34 % of each step") and "75 % of the device" in told.sentence
    assert told.saves is None and told.seconds == pytest.approx(0.02, rel=0.02)


def test_steps_in_which_a_time_of_the_device_is_unknown_do_not_count() -> None:
    planted = on_cuda(recomputing(20), 2)
    planted.database.execute(
        "UPDATE python.torch_trace SET duration = NULL, total_duration = NULL WHERE step // 10 IN (2, 6)"
    )
    (told,) = found(RECOMPUTE, of_device(planted, 20_000))
    assert told.sentence.startswith("Recompute: 34 % of each step")
    planted = on_cuda(with_head(HONEST), 0.25)
    planted.database.execute("UPDATE python.torch_trace SET duration = NULL WHERE step // 10 = 2 AND module = 'conv'")
    (told,) = found(FROZEN_WITH_GRADIENTS, planted, owning(model=(["", "conv", "act"], []), head=([], [""])))
    assert told.seconds == pytest.approx((0.3 + 36 + 1.2) * MS / 4, rel=0.02)


def allocating(*deltas: float | None, used_mb: float = 36_000) -> list[Finding]:
    """Calls that allocate this when they are run again, in MB, on a device of which 44,000 MB are free."""
    planted = on_cuda(recomputing(20), 2)
    planted.database.execute("DELETE FROM python.torch_trace WHERE recompute")
    again = {"root": "model", "module": "conv", "stage": "forward", "recompute": True, "duration": 10 * MS}
    every = {step: deltas if step % 10 == 0 else [None] for step in SAMPLED}  # memory is read in first steps of blocks
    planted.plant("python.torch_trace", [
        {**again, "step": step, "device": "cuda:0", "allocated_delta": delta} for step in every for delta in every[step]
    ])  # fmt: skip
    return found(RECOMPUTE, of_device(planted, used_mb), checkpoints)


def test_checkpointing_is_switched_off_where_what_it_saves_fits() -> None:
    (told,) = allocating(20_000, 20_000, -5_000)
    assert told.remedy == 'probe 4242 eval "model.checkpointing = False"' and told.effect
    assert told.severity is None


def test_checkpointing_that_saves_more_than_is_free_is_not_switched_off() -> None:
    (told,) = allocating(20_000, 30_000)
    more = "some 50,000 MB more would be held, and 44,000 MB of cuda:0 are free"
    assert told.remedy == f"no activation checkpointing of some modules: without any, {more}"
    assert told.severity == "hint" and not told.effect


def test_checkpointing_of_which_it_is_not_known_what_it_saves_is_not_switched_off() -> None:
    (told,) = allocating(20_000, None)
    assert told.remedy.endswith("which is not known") and told.severity is None and not told.effect


@pytest.mark.parametrize("rule", [RECOMPUTE, FROZEN_WITH_GRADIENTS], ids=lambda rule: rule.code)
def test_without_the_times_of_the_device_nothing_is_told(rule: Rule[Watched]) -> None:
    with pytest.raises(SilentError, match="on the device is not known"):
        found(rule, of_device(on_cuda(recomputing(20), None), 20_000))


def test_checkpointing_is_left_alone_where_memory_is_short() -> None:
    assert not found(RECOMPUTE, recomputing(70))
    assert not found(
        RECOMPUTE, recomputing(20), lambda expression: "['10000', '7000']" if "cgroup" in expression else None
    )


def test_files_that_a_container_has_read_leave_memory_for_activations(tmp_path: Path) -> None:
    def read(expression: str) -> str | None:
        return repr(eval(expression.replace("/sys/fs/cgroup", str(tmp_path)))) if "cgroup" in expression else None

    for name, figure in (("max", 10**10), ("current", 9 * 10**9), ("stat", "inactive_file 8000000000")):
        (tmp_path / f"memory.{name}").write_text(f"{figure}\n")
    (told,) = found(RECOMPUTE, recomputing(20), read)
    assert "80 % of the memory is free" in told.sentence
    (tmp_path / "memory.stat").write_text("inactive_file 0\n")
    assert not found(RECOMPUTE, recomputing(20), read)


def updating(kind: str = "AdamW") -> Planted:
    planted = job(*HONEST, optimizer=40)
    return planted.plant("python.torch_trace", [
        {"step": step, "module": kind, "stage": "step", "host_duration": 40 * MS} for step in SAMPLED
    ])  # fmt: skip


def test_an_optimizer_that_updates_one_by_one_is_found_with_what_fusing_saves() -> None:
    (told,) = found(
        OPTIMIZER_UNFUSED, updating(), answers([(1, "optimizer", "AdamW", 600, [(False, None)], "cpu", 24)])
    )
    assert told.sentence.startswith("Unfused optimizer: optimizer (AdamW) updates 600 parameters one after the other")
    assert told.remedy == "probe 4242 eval \"for group in optimizer.param_groups: group['fused'] = True\""
    assert told.saves == told.seconds == pytest.approx(0.85 * 0.04, rel=0.02)


@pytest.mark.parametrize("torch", ["2.3.1", None])
def test_on_the_cpu_an_older_torch_is_not_told_to_fuse(torch: str | None) -> None:
    planted = updating()
    planted.agents = [Facts(rank=0, world_size=1, torch=torch)]
    (told,) = found(OPTIMIZER_UNFUSED, planted, answers([(1, "optimizer", "AdamW", 600, [(False, None)], "cpu", 24)]))
    assert told.remedy == "AdamW(…, fused=True), with torch 2.4 or later" and not told.effect


@pytest.mark.parametrize(
    "settings",
    [
        ("AdamW", 600, [(None, True)], "cpu", 24),
        ("AdamW", 600, [(None, "unknown")], "cpu", 24),
        ("AdamW", 600, [(None, None)], "cuda", 24),
        ("SGD", 9, [(None, None)], "cpu", 24),
    ],
)
def test_optimizers_that_are_fused_or_plain_are_left_alone(settings: tuple[Any, ...]) -> None:
    assert not found(OPTIMIZER_UNFUSED, updating(settings[0]), answers([(1, "optimizer", *settings)]))


ON_CUDA = [(1, "optimizer", "AdamW", 600, [(False, False)], "cuda", 6_000 << 20)]


def test_on_a_device_with_room_for_its_temporaries_foreach_is_live() -> None:
    (told,) = found(OPTIMIZER_UNFUSED, of_device(updating(), 60_000), answers(ON_CUDA))
    assert told.remedy == "probe 4242 eval \"for group in optimizer.param_groups: group['foreach'] = True\""
    assert told.saves is None and told.effect


@pytest.mark.parametrize(("used_mb", "free"), [(75_000, "5,000 MB are free"), (None, "how much is free is not known")])
def test_temporaries_that_may_not_fit_are_no_live_remedy(used_mb: float | None, free: str) -> None:
    planted = updating() if used_mb is None else of_device(updating(), used_mb)
    (told,) = found(OPTIMIZER_UNFUSED, planted, answers(ON_CUDA))
    wanted = "foreach=True would take some 6,000 MB more of the device"
    assert told.remedy == f"AdamW(…, fused=True): {wanted}, and {free}" and not told.effect


def test_the_device_that_has_least_left_decides() -> None:
    planted = of_device(of_device(updating(), 10_000), 79_000, "cuda:1")
    (told,) = found(OPTIMIZER_UNFUSED, planted, answers(ON_CUDA))
    assert "1,000 MB are free" in told.remedy


def test_of_several_optimizers_those_that_are_fused_save_nothing() -> None:
    every = [(1, "a", "AdamW", 300, [(False, None)], "cpu", 24), (2, "b", "AdamW", 300, [(None, True)], "cpu", 24)]
    (told,) = found(OPTIMIZER_UNFUSED, updating(), answers([*every, every[0]]))
    assert told.where == "a" and told.saves == pytest.approx(0.5 * 0.85 * 0.04, rel=0.02)


def in_a_list(*others: tuple[Any, ...], steps: int = 2) -> tuple[Planted, Callable[[str], str | None]]:
    """A loop whose variable is one of several optimizers, and what can be read of it."""
    planted = updating("Adam")
    for _ in range(steps - 1):
        planted.plant("python.torch_trace", [{"step": step, "module": "Adam", "stage": "step"} for step in SAMPLED])
    found = (2, "opt", "Adam", 300, [(None, None)], "cpu", 24)
    every = [*others, (2, "", *found[2:])]
    return planted, lambda asked: repr([found] if asked == of_frame(asked) else every)


def test_optimizers_of_a_list_are_fused_in_the_code() -> None:
    (told,) = found(OPTIMIZER_UNFUSED, *in_a_list((1, "", "Adam", 600, [(None, None)], "cpu", 24)))
    assert told.sentence.startswith("Unfused optimizer: opt and 1 other (Adam) update 900 parameters one after the")
    assert told.remedy == "Adam(…, fused=True) for each" and not told.effect
    assert told.saves == pytest.approx(0.85 * 0.04, rel=0.02) and told.now == "Adam: foreach=None, fused=None"


def test_of_optimizers_of_a_list_the_one_that_is_found_saves_its_part() -> None:
    (told,) = found(OPTIMIZER_UNFUSED, *in_a_list((1, "", "SGD", 900, [(None, None)], "cpu", 24)))
    assert told.where == "opt" and told.saves == pytest.approx(0.25 * 0.85 * 0.04, rel=0.02)
    assert told.remedy == "probe 4242 eval \"for group in opt.param_groups: group['fused'] = True\""


def test_an_optimizer_that_steps_several_times_a_step_is_fused_live() -> None:
    (told,) = found(OPTIMIZER_UNFUSED, *in_a_list(steps=5))
    assert told.where == "opt" and told.remedy.startswith("probe 4242 eval")
    assert told.saves == pytest.approx(0.85 * 0.04, rel=0.02)


def test_of_one_that_wraps_another_the_settings_are_read_once() -> None:
    torch = pytest.importorskip("torch")
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(3))])
    around = type("Around", (torch.optim.Optimizer,), {"param_groups": optimizer.param_groups})
    wrapper = around.__new__(around)
    wrapper.optimizer = optimizer
    told = eval(OPTIMIZER_UNFUSED.asks[0], {"__builtins__": __builtins__, "inner": optimizer, "outer": wrapper})
    assert [each[0] for each in told] == 2 * [id(optimizer.param_groups)]
    assert [each[2] for each in told] == ["Adam", "Adam"] and told[0][-1] == 12  # bytes of its parameters


@pytest.mark.parametrize(("kind", "findings"), [("float32", 1), ("bfloat16", 1), ("complex64", 0)])
def test_an_optimizer_of_complex_weights_is_left_alone(kind: str, findings: int) -> None:
    torch = pytest.importorskip("torch")
    adam = torch.optim.Adam([torch.nn.Parameter(torch.zeros(3, dtype=getattr(torch, kind))), torch.zeros(3)])
    told = eval(OPTIMIZER_UNFUSED.asks[0], {"__builtins__": __builtins__, "adam": adam})
    assert len(found(OPTIMIZER_UNFUSED, updating("Adam"), answers(told))) == findings


def test_an_optimizer_that_cannot_be_read_is_said_to_be() -> None:
    with pytest.raises(SilentError, match="could not be read"):
        found(OPTIMIZER_UNFUSED, updating())


def compilations(steps: Iterable[int]) -> Planted:
    planted = Planted().steps(STEPS, noise=0.0, forward=100)
    of = {"function": "forward", "file": "/x/net.py", "line": 7, "recompile": True, "duration": 1.0,
          "reason": "0/1: tensor 'x' size mismatch at index 1. expected 8, actual 9"}  # fmt: skip
    return planted.plant("python.compile_trace", [{**of, "step": step, "start_ns": step} for step in steps])


def test_a_function_that_is_compiled_again_and_again_is_found_with_its_guard() -> None:
    (told,) = found(RECOMPILATION, compilations(range(5, 100, 20)))
    assert told.sentence == "Recompilation: forward was compiled again 5 times in 100 steps, 50 % of the time."
    assert told.where == "forward (net.py:7)" and "size mismatch" in told.why[1] and "dynamic=True" in told.remedy


@pytest.mark.parametrize("steps", [(1, 2, 60), (1, 2, 3, 4, 5)], ids=["few", "over"])
def test_compilations_that_come_to_an_end_are_left_alone(steps: tuple[int, ...]) -> None:
    assert not found(RECOMPILATION, compilations(steps))


def with_head(around: Iterable[Module]) -> Planted:
    """An encoder, and then its head."""
    planted = job(*around, net("head"))
    planted.database.execute("UPDATE python.torch_trace SET start_ns = 9 WHERE root = 'head' AND stage = 'forward'")
    return planted


Owned = tuple[list[str], list[str]]  # of a model: modules that no optimizer owns, and those that one owns


def owning(updates: object = None, **owned: Owned) -> Callable[[str], str | None]:
    """What can be read of these models."""

    def read(expression: str) -> str | None:
        model = re.search(r"(\w+)\.named_modules", expression)
        return repr(owned[model[1]] if model else updates)

    return read


def test_gradients_of_what_no_optimizer_owns_are_found() -> None:
    read = owning(model=(["", "conv", "act"], []), head=([], [""]))
    (told,) = found(FROZEN_WITH_GRADIENTS, with_head(HONEST), read)
    assert told.sentence.endswith("computes gradients of model, which no optimizer updates.")
    assert told.seconds == pytest.approx((0.3 + 36 + 1.2) * MS, rel=0.02)
    assert told.remedy == 'probe 4242 eval "model.requires_grad_(False)"'


def test_gradients_on_a_device_cost_its_time_and_save_nobody_knows_what() -> None:
    read = owning(model=(["", "conv", "act"], []), head=([], [""]))
    (told,) = found(FROZEN_WITH_GRADIENTS, on_cuda(with_head(HONEST), 0.25), read)
    assert told.seconds == pytest.approx((0.3 + 36 + 1.2) * MS / 4, rel=0.02) and told.saves is None
    (told,) = found(FROZEN_WITH_GRADIENTS, on_cuda(adversarial(detached=False), 0.5), owned_by(0, 1))
    assert told.seconds == pytest.approx(5 * MS, rel=0.02) and told.saves is None


def test_a_step_of_which_a_time_of_the_device_is_unknown_says_nothing_of_any_module() -> None:
    around = [net(around_ms=0.3), Module("conv", 4, 5, 9, kind="Conv2d"), Module("act", 40, 0.03, 0.5, kind="ReLU")]
    planted = on_cuda(with_head(around), 1)
    planted.database.execute("UPDATE python.torch_trace SET duration = NULL WHERE step // 10 = 2 AND module = 'conv'")
    (told,) = found(FROZEN_WITH_GRADIENTS, planted, owning(model=(["conv"], ["act"]), head=([], [""])))
    assert told.seconds == pytest.approx(36 * MS, rel=0.02)
    planted = on_cuda(adversarial(detached=False), 0.5)
    planted.database.execute(
        "UPDATE python.torch_trace SET duration = NULL, total_duration = NULL "
        "WHERE step // 10 = 2 AND seq = 2 AND root = 'generator'"
    )
    (told,) = found(FROZEN_WITH_GRADIENTS, planted, owned_by(0, 1))
    assert told.seconds == pytest.approx(5 * MS, rel=0.02)


def test_gradients_that_pass_through_to_what_is_trained_count_half() -> None:
    planted = with_head(HONEST)
    planted.database.execute("UPDATE python.torch_trace SET start_ns = 0 WHERE module = 'act' AND stage = 'forward'")
    (told,) = found(FROZEN_WITH_GRADIENTS, planted, owning(model=(["conv"], ["act"]), head=([], [""])))
    assert told.where == "model.conv" and told.seconds == pytest.approx(18 * MS, rel=0.02)


@pytest.mark.parametrize("owned", [([], ["", "conv"]), (["", "conv", "act"], [])])
def test_models_that_are_trained_or_whose_optimizer_owns_copies_are_left_alone(owned: Owned) -> None:
    assert not found(FROZEN_WITH_GRADIENTS, with_head(HONEST), owning(model=owned, head=([], [])))


def adversarial(detached: bool, inside: str = "") -> Planted:
    """In each step the discriminator is updated, and then the generator, which ends the step.  inside: the module that
    nobody calls and that has both."""
    planted = Planted().steps(STEPS, noise=0.0, backward=50, forward=50)
    through = [
        (2, ["discriminator"] if detached else ["discriminator", "generator"]),
        (6, ["discriminator", "generator"]),
    ]
    of = {"module_type": "Net", "depth": 0, "recompute": False, "training": True, "grad": True,
          "host_duration": 10 * MS, "total_host_duration": 10 * MS}  # fmt: skip
    rows = [
        {**of, "step": step, "seq": seq, "stage": stage, "root": inside or model, "module": model if inside else "Net",
         "start_ns": seq + place}
        for step in SAMPLED for seq, models in through for place, model in enumerate(models)
        for stage in ("forward", "backward")
    ]  # fmt: skip
    rows += [{"step": step, "stage": "step", "module": "SGD", "start_ns": at} for step in SAMPLED for at in (4, 8)]
    return planted.plant("python.torch_trace", rows)


def owned_by(generator: int, discriminator: int) -> Callable[[str], str | None]:
    updates = [([generator], 7), ([discriminator], 7)]
    return owning(updates, generator=([], [""]), discriminator=([], [""]), module=([], ["generator", "discriminator"]))


def test_a_pass_that_goes_back_through_the_other_model_is_found() -> None:
    (told,) = found(FROZEN_WITH_GRADIENTS, adversarial(detached=False), owned_by(0, 1))
    assert "computes gradients of generator in passes for discriminator" in told.sentence
    assert told.seconds == pytest.approx(10 * MS, rel=0.02) and ".detach()" in told.remedy


def test_a_pass_that_goes_back_through_the_other_model_of_a_module_is_found() -> None:
    planted = adversarial(detached=False, inside="module")
    (told,) = found(FROZEN_WITH_GRADIENTS, planted, owned_by(0, 1))
    assert "computes gradients of module.generator in passes for module.discriminator" in told.sentence
    assert not found(FROZEN_WITH_GRADIENTS, adversarial(detached=True, inside="module"), owned_by(0, 1))


def test_models_that_are_detached_or_share_an_optimizer_are_left_alone() -> None:
    assert not found(FROZEN_WITH_GRADIENTS, adversarial(detached=True), owned_by(0, 1))
    assert not found(FROZEN_WITH_GRADIENTS, adversarial(detached=False), owned_by(0, 0))


def test_full_precision_is_a_hint_on_busy_devices_only() -> None:
    with pytest.raises(UsageError, match="No module runs on a CUDA device"):
        found(NO_MIXED_PRECISION, job(*HONEST))
    planted = job(Module("Net", 1, 40, 60, None, device="cuda:0"))
    read = answers([["torch.float32"], "highest", 9])
    assert not found(NO_MIXED_PRECISION, planted, read)  # whether it is busy is not known
    planted.plant("host.gpu_trace", [{"step": 5, "gpu_util_pct": 98.0}])
    (told,) = found(NO_MIXED_PRECISION, planted, read)
    assert told.severity == "hint" and "set_float32_matmul_precision" in told.remedy
    (snippet,) = re.findall(r'probe 4242 eval "(.*)"', told.remedy)
    assert snippet == "import torch; torch.set_float32_matmul_precision('high')"  # a loop need not import torch
    assert "lose precision" in told.effect
    assert not found(NO_MIXED_PRECISION, planted, answers([["torch.bfloat16"], "highest", 9]))


def test_what_a_recorder_asks_is_what_the_rules_ask() -> None:
    """Of these models; the rules ask nothing that was not asked of them before."""
    asked = {*filled((each for rule in ON_TABLES for each in rule.asks), ["model", "head", "Net-2"])}
    assert not any("Net-2" in each for each in asked) and any(each != of_frame(each) for each in asked)
    wanted = list[str]()
    owned = owning(model=(["", "conv", "act"], []), head=([], [""]))

    def read(expression: str) -> str | None:
        wanted.append(expression)
        return owned(expression)

    assert found(FROZEN_WITH_GRADIENTS, with_head(HONEST), read)
    with pytest.raises(SilentError):
        found(OPTIMIZER_UNFUSED, updating(), lambda each: wanted.append(each))
    assert len(wanted) > 4 and asked >= {*wanted}
