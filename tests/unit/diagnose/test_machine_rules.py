"""Rules on the host, the GIL, memory and devices, on planted rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from planted import Planted

from probe.diagnose.measures.growth import growth
from probe.diagnose.rule import Finding, Rule
from probe.diagnose.rules.data.input_bound import INPUT_BOUND
from probe.diagnose.rules.machine import memory_creep
from probe.diagnose.rules.machine.cpu_oversubscription import CPU_OVERSUBSCRIPTION
from probe.diagnose.rules.machine.gil_contention import GIL_CONTENTION
from probe.diagnose.rules.machine.gpu_idle import GPU_IDLE
from probe.diagnose.rules.machine.gpu_throttled import GPU_THROTTLED
from probe.diagnose.rules.machine.host_contention import HOST_CONTENTION
from probe.diagnose.rules.machine.memory_bound import MEMORY_BOUND
from probe.diagnose.rules.machine.memory_creep import MEMORY_CREEP
from probe.diagnose.rules.machine.memory_near_limit import MEMORY_NEAR_LIMIT
from probe.diagnose.why import judge
from probe.errors import ProbeError
from probe.host.facts import Facts

SECOND_NS = 10**9


def seconds(
    planted: Planted, count: int = 20, ranks: Sequence[int] = (0,), on_b: Sequence[int] = (), **columns: float
) -> Planted:
    """A row of host.process_trace for each second and rank, of steps of 100 ms."""
    usual = {"core_wait_pct": 0.0, "cpu_pct": 100.0, "host_cpu_pct": 30.0, "context_switches_s": 50.0,
             "gil_wait_us": 5.0, "host_memory_used_pct": 40.0}  # fmt: skip
    rows = [
        {"host": "b" if rank in on_b else "a", "rank": rank, "step": 10 * second, "start_ns": second * SECOND_NS,
         **usual, **columns}
        for second in range(1, count + 1) for rank in ranks
    ]  # fmt: skip
    return planted.plant("host.process_trace", rows)


def machine(total: int = 8, threads: int = 8, allowed: int | None = None, quota: str = "max 100000\n") -> Any:
    return {"read": lambda expression: repr((total, allowed or total, threads, [quota]))}


def found(rule: Rule[Any], planted: Planted, **options: Any) -> list[Finding]:
    return list(rule.find(planted.watched(**options)))


@pytest.fixture(autouse=True)
def look_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What holds memory is looked at twice; played jobs hold the same in both looks, whenever these are."""
    monkeypatch.setattr(memory_creep, "_LOOKS_S", 0.0)


def test_ranks_with_more_threads_than_cores_are_told_how_many_to_use() -> None:
    planted = seconds(Planted().steps(forward=50, backward=50, ranks=(0, 1)), ranks=(0, 1), core_wait_pct=50,
                      cpu_pct=390, host_cpu_pct=99)  # fmt: skip
    (told,) = found(CPU_OVERSUBSCRIPTION, planted, **machine())
    assert told.sentence.startswith("CPU oversubscription: 2 ranks with 8 threads each share 8 cores, and the training")
    assert told.sentence.endswith(" waits 50 % of the time for one.")
    assert told.remedy == 'probe 4242 eval "import torch; torch.set_num_threads(4)"' and told.ranks == (0, 1)
    assert told.seconds == pytest.approx(0.05, rel=0.01) and (told.confidence or 0) > 0.99


def test_the_limit_of_a_container_counts() -> None:
    planted = seconds(Planted().steps(forward=100), core_wait_pct=60, cpu_pct=200, host_cpu_pct=10)
    (told,) = found(CPU_OVERSUBSCRIPTION, planted, **machine(64, 64, quota="200000 100000\n"))
    assert "64 threads share 2 cores" in told.sentence and "set_num_threads(2)" in told.remedy


def pinned(monkeypatch: pytest.MonkeyPatch, *cores: set[int], on_b: Sequence[int] = ()) -> Planted:
    """Ranks with 4 threads each, which may run on these of the 64 cores of their host: this one, or another."""
    agents = [Facts(rank=rank, world_size=len(cores), host="a", pid=1000 + rank) for rank in range(len(cores))]
    here = {facts.rank: facts.pid for facts in agents if facts.rank not in on_b}
    monkeypatch.setattr("probe.diagnose.measures.hosts.here", lambda facts: here.get(facts.rank))
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: cores[pid - 1000])
    ranks = range(len(cores))
    planted = Planted(agents=agents).steps(forward=100, ranks=ranks)
    return seconds(planted, ranks=ranks, on_b=on_b, core_wait_pct=40, cpu_pct=390)


def test_ranks_with_cores_of_their_own_do_not_share_those_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    apart = [{*range(4 * rank, 4 * rank + 4)} for rank in range(4)]
    assert not found(CPU_OVERSUBSCRIPTION, pinned(monkeypatch, *apart), **machine(64, threads=4, allowed=4))
    (told,) = found(CPU_OVERSUBSCRIPTION, pinned(monkeypatch, *apart), **machine(64, threads=8, allowed=4))
    assert "4 ranks with 8 threads each share 16 cores" in told.sentence and "set_num_threads(4)" in told.remedy


def test_ranks_on_the_same_few_cores_share_them(monkeypatch: pytest.MonkeyPatch) -> None:
    planted = pinned(monkeypatch, {0, 1, 2, 3}, {0, 1, 2, 3})
    (told,) = found(CPU_OVERSUBSCRIPTION, planted, **machine(64, threads=4, allowed=4))
    assert "2 ranks with 4 threads each share 4 cores" in told.sentence and "set_num_threads(2)" in told.remedy


def test_ranks_elsewhere_that_may_have_cores_of_their_own_are_not_judged() -> None:
    planted = seconds(Planted().steps(forward=100, ranks=(0, 1)), ranks=(0, 1), core_wait_pct=40, cpu_pct=390)
    with pytest.raises(ProbeError, match="cores of their own can be seen there only"):
        found(CPU_OVERSUBSCRIPTION, planted, **machine(64, threads=4, allowed=4))
    assert not found(CPU_OVERSUBSCRIPTION, planted, **machine(64, threads=2, allowed=4))  # enough for all of them


def test_a_host_that_cannot_be_judged_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    planted = pinned(monkeypatch, *[{0, 1, 2, 3}] * 4, on_b=(2, 3))
    (told,) = found(CPU_OVERSUBSCRIPTION, planted, **machine(64, threads=4, allowed=4))
    assert told.ranks == (0, 1)


@pytest.mark.parametrize(
    ("seen", "threads"),
    [
        ({"core_wait_pct": 50, "cpu_pct": 390, "host_cpu_pct": 99}, 4),  # as many threads as cores
        ({"core_wait_pct": 50, "cpu_pct": 390, "host_cpu_pct": 99}, 1),  # more ranks than cores, perhaps: no threads
        ({"core_wait_pct": 10, "cpu_pct": 700, "host_cpu_pct": 99}, 16),  # that hardly wait
        ({"core_wait_pct": 60, "cpu_pct": 40, "host_cpu_pct": 99}, 16),  # that have nothing to do: others' work
    ],
)
def test_threads_that_do_not_compete_are_left_alone(seen: dict[str, float], threads: int) -> None:
    planted = seconds(Planted().steps(forward=100, ranks=(0, 1)), ranks=(0, 1), **seen)
    assert not found(CPU_OVERSUBSCRIPTION, planted, **machine(threads=threads))


def test_a_job_that_cannot_be_asked_for_its_threads_is_not_judged() -> None:
    planted = seconds(Planted().steps(forward=100), core_wait_pct=60, cpu_pct=700, host_cpu_pct=99)
    with pytest.raises(ProbeError, match="does not say how many threads"):
        found(CPU_OVERSUBSCRIPTION, planted)


def test_other_processes_that_use_the_cores_are_found() -> None:
    planted = seconds(Planted().steps(forward=100), core_wait_pct=60, cpu_pct=40, host_cpu_pct=100)
    (told,) = found(HOST_CONTENTION, planted, **machine(4))
    assert told.sentence == "Host contention: 54 % of each step waits for cores of a that other processes use."
    assert told.why[0] == "4.0 of 4 cores are busy, 0.40 with this job"


@pytest.mark.parametrize(
    "seen",
    [
        {"core_wait_pct": 10, "cpu_pct": 90, "host_cpu_pct": 90},  # a little
        {"core_wait_pct": 60, "cpu_pct": 390, "host_cpu_pct": 100},  # the job's own work
        {"core_wait_pct": 60, "cpu_pct": 100, "host_cpu_pct": 50},  # a limit of its own
    ],
)
def test_a_host_that_others_hardly_use_is_left_alone(seen: dict[str, float]) -> None:
    assert not found(HOST_CONTENTION, seconds(Planted().steps(forward=100), **seen), **machine(4))


def test_workers_elsewhere_may_be_what_uses_the_cores() -> None:
    planted = seconds(Planted().steps(forward=100), core_wait_pct=60, cpu_pct=40, host_cpu_pct=100)
    planted.plant("python.dataloader_trace", [{"step": 5, "loader": "train", "num_workers": 4}])
    with pytest.raises(ProbeError, match="can be seen there only"):
        found(HOST_CONTENTION, planted, **machine(4))


def holds(planted: Planted, share: float, phase: str = "forward", thread: int | None = 2) -> Planted:
    """Another thread holds the GIL for this share of a hundred samples."""
    main, monitor = [], []
    for number in range(100):
        at, held = {"start_ns": number, "step": 10, "seconds": 0.1}, number < 100 * share
        main.append({**at, "thread": thread and 1, "is_main": True, "phase": phase, "holds_gil": not held})
        monitor.append({**at, "thread": thread, "is_main": False, "holds_gil": held, "thread_name": "monitor",
                        "function": "look", "file": "/x/train.py", "line": 7})  # fmt: skip
    planted.plant("python.profile", main).plant("python.profile", monitor)
    return planted


@pytest.mark.parametrize("thread", [2, None], ids=["native ids", "Python 3.10"])
def test_a_thread_that_holds_the_gil_is_named(thread: int | None) -> None:
    planted = holds(seconds(Planted().steps(forward=100), gil_wait_us=6000), 0.4, thread=thread)
    (told,) = found(GIL_CONTENTION, planted)
    assert told.sentence == "GIL contention: 40 % of each step waits for the GIL, which thread monitor holds."
    assert told.where == "look (train.py:7)" and told.seconds == pytest.approx(0.04, rel=0.01)


@pytest.mark.parametrize(
    ("share", "phase", "wait_us"), [(0.02, "forward", 6000), (0.4, "data", 6000), (0.4, "forward", 10)]
)
def test_a_thread_that_does_not_keep_the_training_waiting_is_left_alone(
    share: float, phase: str, wait_us: float
) -> None:
    planted = seconds(Planted().steps(forward=100), gil_wait_us=wait_us)
    assert not found(GIL_CONTENTION, holds(planted, share, phase))


def uses(planted: Planted, mb: Any, **columns: Any) -> Planted:
    rows = [
        {"step": 10 * (second + 1), "start_ns": second * SECOND_NS, "device": "cpu", "rss_mb": value, "shared_mb": 5.0,
         **columns}
        for second, value in enumerate(mb)
    ]  # fmt: skip
    return planted.plant("python.memory_trace", rows)


def noise(count: int) -> Any:
    return 3 * np.random.default_rng(1).standard_normal(count)


def memory(total_mb: int, limit: str = "max\n") -> Any:
    texts = [limit, "0\n"]
    return {"read": lambda expression: repr((total_mb << 20, texts)) if "SC_PHYS" in expression else None}


@pytest.mark.parametrize(("total_mb", "severity"), [(3 * 6000, "critical"), (20 * 6000, "warning"), (10**9, "hint")])
def test_memory_that_grows_is_found_and_the_time_that_is_left_decides(total_mb: int, severity: str) -> None:
    planted = seconds(Planted().steps(forward=100), count=60)
    uses(planted, 300 + 5.0 * np.arange(60) + noise(60))
    (told,) = found(MEMORY_CREEP, planted, **memory(total_mb))
    assert told.sentence.startswith("Memory creep: rank 0 takes 0.50 MB more of the host's memory in each step; a is")
    assert told.severity == severity


def test_the_limit_of_a_container_is_told() -> None:
    planted = uses(seconds(Planted().steps(forward=100), count=60), 300 + 5.0 * np.arange(60))
    (told,) = found(MEMORY_CREEP, planted, **memory(10**9, f"{1200 << 20}\n"))
    assert told.sentence.endswith("; its container is full in 4.0 min.") and told.severity == "critical"


def test_files_that_a_container_has_read_do_not_count(tmp_path: Path) -> None:
    stat = "anon 1990000000\ninactive_file 8000000000\nfile 8000000001"
    for name, figure in (("max", 10**10), ("current", 9_990_000_000), ("stat", stat)):
        (tmp_path / f"memory.{name}").write_text(f"{figure}\n")

    def read(expression: str) -> str | None:
        if "cgroup" not in expression:
            return None
        _, container = eval(expression.replace("/sys/fs/cgroup", str(tmp_path)))
        return repr((10**16, container))  # of a machine that has more

    planted = uses(seconds(Planted().steps(forward=100), count=60), 300 + 0.5 * np.arange(60))
    (told,) = found(MEMORY_CREEP, planted, read=read)
    assert told.severity == "warning" and "its container is full in 4.2 h" in told.sentence
    (tmp_path / "memory.stat").write_text("inactive_file 0\n")
    (told,) = found(MEMORY_CREEP, planted, read=read)
    assert told.severity == "critical" and "its container is full in 0.32 min" in told.sentence


def test_the_limit_of_one_host_is_not_told_of_another() -> None:
    planted = Planted(agents=[Facts(rank=rank, world_size=2, host=host) for rank, host in enumerate("ab")])
    planted = uses(seconds(planted.steps(forward=100, ranks=(0, 1)), count=60), 300 + 5.0 * np.arange(60), rank=1)
    (told,) = found(MEMORY_CREEP, planted, **memory(10**9, f"{1200 << 20}\n"))
    assert "rank 1 takes" in told.sentence and "is full" not in told.sentence


def test_who_holds_what_grows_is_told_by_what_has_been_held_since_the_first_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits, kept = list[float](), dict[Any, Any]()
    monkeypatch.setattr("probe.diagnose.rules.machine.memory_creep.time.sleep", waits.append)
    planted = uses(seconds(Planted().steps(forward=100), count=60), 300 + 5.0 * np.arange(60))
    for look in (1, 2, 3):
        planted.plant("python.tensor_trace", [{"holder": f"losses[{look}]", "kind": "other", "bytes": 1 << 20}])
        (told,) = found(MEMORY_CREEP, planted, kept=kept, **memory(3 * 6000))
        assert told.where == ("" if look == 1 else "held by losses[*]")
    assert len(waits) == 1


FILLS = np.minimum(np.arange(60) * 20.0, 400)
LEVELS_OFF = 400 * (1 - np.exp(-np.arange(60) / 12))


def test_a_small_leak_of_short_steps_is_told_in_kb() -> None:
    planted = Planted().steps(20_000, forward=5)
    uses(planted, 300 + 0.6 * np.arange(60))
    planted.database.execute("UPDATE python.memory_trace SET step = 20 * step")
    (told,) = found(MEMORY_CREEP, planted, **memory(10**6))
    assert told.sentence.startswith("Memory creep: rank 0 takes 3.1 kB more of the host's memory in each step")
    assert told.why == ["35 MB more in 11800 steps, 0.60 MB a second"]


@pytest.mark.parametrize("mb", [noise(60), FILLS + noise(60), LEVELS_OFF + noise(60), np.arange(60) / 10])
def test_memory_that_is_steady_or_levels_off_is_left_alone(mb: Any) -> None:
    assert not found(MEMORY_CREEP, uses(Planted().steps(forward=100), 300 + mb), **memory(3 * 6000))


def test_a_warm_up_does_not_hide_what_grows_after_it() -> None:
    grown = growth(np.arange(200), np.minimum(np.arange(200) * 10, 900) + np.arange(200) * 0.5)
    assert grown is not None and grown.a_step == pytest.approx(0.5) and grown.first >= 99


def device(planted: Planted, count: int = 20, **columns: Any) -> Planted:
    usual = {"device": "cuda:0", "uuid": "u", "name": "H", "gpu_util_pct": 95.0, "memory_total_mb": 80000.0,
             "memory_used_mb": 60000.0, "power_w": 300.0, "power_limit_w": 700.0, "sm_clock_mhz": 1980.0,
             "temperature_celsius": 60.0, "throttle_reasons": []}  # fmt: skip
    rows = [
        {"step": 10 * second, "start_ns": second * SECOND_NS, **usual}
        | {name: value(second) if callable(value) else value for name, value in columns.items()}
        for second in range(1, count + 1)
    ]  # fmt: skip
    return planted.plant("host.gpu_trace", rows)


def test_a_device_that_idles_is_found() -> None:
    (told,) = found(GPU_IDLE, device(Planted().steps(data=80, forward=20), gpu_util_pct=14.0))
    assert told.sentence == "Idle: no kernel runs on cuda:0 of rank 0 for 86 % of the time."
    assert told.seconds == pytest.approx(0.086, rel=0.01)
    assert not found(GPU_IDLE, device(Planted().steps(forward=100)))


def test_a_device_that_idles_since_the_loader_is_slow_is_told_under_that() -> None:
    planted = device(Planted().steps(data=80, forward=20), gpu_util_pct=14.0)
    waits = [{"step": step, "loader": "train", "wait_duration": 0.08, "num_workers": 0, "failed": False}
             for step in range(1, 201)]  # fmt: skip
    told = judge(planted.plant("python.dataloader_trace", waits).watched(), (GPU_IDLE, INPUT_BOUND))
    assert told.code == "input-bound" and [each.code for each in told.findings[0].consequences] == ["gpu-idle"]


def test_a_device_that_is_too_hot_is_found_with_what_its_clock_lacks() -> None:
    hot = {"throttle_reasons": lambda second: ["sw_thermal_slowdown"] if second > 5 else [],
           "sm_clock_mhz": lambda second: 990.0 if second > 5 else 1980.0}  # fmt: skip
    (told,) = found(GPU_THROTTLED, device(Planted().steps(forward=100), **hot))
    assert told.share == pytest.approx(0.375) and told.severity == "warning" and "cooling" in told.remedy


def test_a_device_that_several_ranks_see_is_slowed_down_for_as_long_as_for_one() -> None:
    planted, slow = Planted().steps(forward=100), {"throttle_reasons": ["sw_thermal_slowdown"]}
    for rank in range(8):
        device(planted, rank=rank, **slow)
    (told,) = found(GPU_THROTTLED, planted)
    assert "for 100 % of the time" in told.sentence and (told.share or 0.0) <= 1
    planted = Planted().steps(forward=100)
    for rank in range(8):
        device(planted, rank=rank, throttle_reasons=lambda second: ["sw_thermal_slowdown"] if second == 1 else [])
    assert not found(GPU_THROTTLED, planted)


def test_a_busy_device_at_its_power_limit_is_a_hint_and_one_that_idles_is_none() -> None:
    (told,) = found(GPU_THROTTLED, device(Planted().steps(forward=100), throttle_reasons=["sw_power_cap"]))
    assert told.severity == "hint"
    assert not found(GPU_THROTTLED, device(Planted().steps(forward=100), throttle_reasons=["gpu_idle"]))


def test_memory_near_its_limit_is_found_by_what_tensors_needed() -> None:
    planted = uses(device(Planted().steps(forward=100)), [None] * 20, device="cuda:0", peak_mb=79000.0)
    (told,) = found(MEMORY_NEAR_LIMIT, seconds(planted))
    assert told.severity == "hint" and "99 % of cuda:0" in told.sentence
    (told,) = found(MEMORY_NEAR_LIMIT, seconds(Planted().steps(forward=100), host_memory_used_pct=97))
    assert told.severity == "warning" and "97 % of the memory of a" in told.sentence


def test_memory_that_torch_only_keeps_is_not_near_the_limit() -> None:
    planted = uses(device(Planted().steps(forward=100), memory_used_mb=79900.0), [None] * 20, device="cuda:0",
                   peak_mb=50000.0)  # fmt: skip
    assert not found(MEMORY_NEAR_LIMIT, seconds(planted))


def modules(bound: str) -> Planted:
    rows = [
        {"step": step, "module": f"layers.{layer}", "stage": "forward", "device_duration": 0.02, "bound": bound if layer
         else "compute", "memory_gbps": 2000.0, "peak_share": 0.7}
        for step in (5, 6) for layer in range(4)
    ]  # fmt: skip
    return Planted().steps(forward=100).plant("python.module_cost", rows)


def test_modules_that_wait_for_memory_are_told() -> None:
    (told,) = found(MEMORY_BOUND, modules("memory"))
    assert told.sentence == "Memory-bound: modules that take 75 % of the device's time wait for its memory."
    assert told.seconds == pytest.approx(0.06) and "2,000 GB/s, 70 % of the peak" in told.why[0]
    assert not found(MEMORY_BOUND, modules("compute"))


@pytest.mark.parametrize("rule", [GPU_IDLE, GPU_THROTTLED, MEMORY_BOUND, MEMORY_CREEP, HOST_CONTENTION])
def test_without_samples_a_rule_says_that_it_could_not_look(rule: Rule[Any]) -> None:
    with pytest.raises(ProbeError):
        found(rule, Planted().steps(forward=100))
