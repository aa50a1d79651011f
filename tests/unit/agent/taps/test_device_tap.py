"""The device tap on a played device: what is known, what is NULL, what it leaves alone, and that nothing gets out."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

from naps import MS, Clock, Nap, napping  # noqa: E402
from played_cuda import Kernels, PlayedCuda, played_cuda, to_cuda  # noqa: E402
from tapped import Taps, tapped  # noqa: E402

from probe.agent.taps.device import clocks  # noqa: E402
from probe.agent.taps.modules.forward_hooks import ForwardHooks  # noqa: E402
from probe.host import agent_memory  # noqa: E402
from probe.streams import BARE, DEVICE, MARKS, SAMPLED, SPANS  # noqa: E402

Rows = list[dict[str, Any]]


def model_on(played: PlayedCuda) -> Any:
    """A root of 1 and 2 ms with leaves of 3 and 4, 5 and 6 ms."""
    return to_cuda(Kernels(played, 1, 2, Kernels(played, 3, 4), Kernels(played, 5, 6)))


def known(played: PlayedCuda, taps: Taps) -> Rows:
    played.catch_up()
    taps.device.drain()
    return taps.table()


def column(rows: Rows, stage: str, name: str) -> list[float | None]:
    """In ms, of each row of the stage."""
    return [None if row[name] is None else round(row[name] * 1e3, 1) for row in rows if row["stage"] == stage]


def of(rows: Rows, module: str, stage: str = "forward") -> dict[str, Any]:
    (row,) = [row for row in rows if row["module"] == module and row["stage"] == stage]
    return row


def test_a_device_has_its_own_times_and_the_host_keeps_its_own(played: PlayedCuda, taps: Taps) -> None:
    model_on(played)(torch.ones(1)).sum().backward()
    rows = known(played, taps)
    for stage, times in (
        ("forward", {"Kernels": 1, "inner": 0, "inner.0": 3, "inner.1": 5}),
        ("backward", {"Kernels": 2, "inner": 0, "inner.0": 4, "inner.1": 6}),
    ):
        assert {row["module"]: row["duration"] * 1e3 for row in rows if row["stage"] == stage} == pytest.approx(
            times, abs=0.001
        )
        assert sum(row["total_duration"] for row in rows if row["module"] == "Kernels" and row["stage"] == stage) == (
            pytest.approx(sum(times.values()) / 1e3, abs=1e-6)
        )
    assert all(row["total_host_duration"] < 1e-6 and row["device"] == "cuda:0" for row in rows)


def test_an_optimizer_step_has_the_time_of_its_kernels(played: PlayedCuda, taps: Taps) -> None:
    class Optimizer(torch.optim.SGD):  # type: ignore[misc]
        def step(self, closure: Any = None) -> Any:
            played.launch(model, "step", 7 * MS)

    model = model_on(played)
    sgd = Optimizer(model.parameters(), lr=0.1)
    model(torch.ones(1)).sum().backward()
    sgd.step()
    rows = known(played, taps)
    assert column(rows, "step", "duration") == column(rows, "step", "total_duration") == [7]


def test_memory_is_that_at_the_end_of_the_call(played: PlayedCuda, taps: Taps) -> None:
    model_on(played)(torch.ones(1)).sum().backward()
    rows = known(played, taps)
    memory = ("allocated", "allocated_delta", "max_allocated", "reserved")
    assert [of(rows, "inner.0")[name] for name in memory] == [120, 10, 120, 200]
    assert [of(rows, "Kernels")[name] for name in memory] == [130, 30, 130, 200]
    assert [of(rows, "inner.0", "backward")[name] for name in memory] == [None] * 4


def test_memory_is_read_in_the_first_step_of_a_sampled_block_and_not_in_the_others(
    played: PlayedCuda, taps: Taps
) -> None:
    model = model_on(played)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for flags in (SAMPLED, None, None, SAMPLED, None, *[None] * 5, SAMPLED):
        if flags is not None:
            taps.device.switch(flags)  # as at the first step of a block, within it, and at the next block's
        model(torch.ones(1)).sum().backward()
        optimizer.step()
    rows = known(played, taps)
    calls = [row for row in rows if (row["module"], row["stage"]) == ("inner.0", "forward")]
    assert [row["step"] for row in calls if row["allocated"] is not None] == [0, 10]
    assert all((row["allocated"] is None) == (row["allocated_delta"] is None) for row in calls) and len(calls) == 11


def test_the_agents_thread_is_called_when_a_block_of_sampled_steps_begins(played: PlayedCuda, taps: Taps) -> None:
    """Else a large model would use up the events before that thread looks the next time."""
    called = []
    taps.device._context.drain_soon = lambda: called.append(taps.device.waits)
    taps.device.switch(SAMPLED)  # it goes on
    assert called == []
    taps.device._opened_ns = 0  # long ago
    for flags in (BARE, SAMPLED, SAMPLED, BARE, SAMPLED):
        taps.device.switch(flags)
    assert called == [True]


def test_a_module_on_the_cpu_has_the_hosts_times(played: PlayedCuda, taps: Taps) -> None:
    there, here = model_on(played), Nap(forward_ms=2, backward_ms=3)
    here(there(torch.ones(1))).sum().backward()
    rows = known(played, taps)
    for stage, ms in (("forward", 2), ("backward", 3)):
        assert of(rows, "Nap", stage)["duration"] == of(rows, "Nap", stage)["host_duration"]
        assert of(rows, "Nap", stage)["duration"] == pytest.approx(ms / 1e3, abs=1e-6)
    assert of(rows, "Nap")["device"] == "cpu" and of(rows, "Nap")["allocated"] is None


def test_a_criterion_without_parameters_runs_where_its_arguments_are(played: PlayedCuda, taps: Taps) -> None:
    class Criterion(nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            played.launch(self, "forward", 4 * MS)
            return x.sum()

    Criterion()(to_cuda(nn.Linear(1, 1)).weight)
    Criterion()(torch.ones(1))
    there, here = known(played, taps)
    assert (there["device"], there["duration"]) == ("cuda:0", pytest.approx(0.004))
    assert (here["device"], here["duration"]) == (None, here["host_duration"])


def test_a_model_on_two_devices_has_no_time_of_its_own_and_its_parts_have(played: PlayedCuda, taps: Taps) -> None:
    model = nn.Sequential(to_cuda(Kernels(played, 3, 4)), to_cuda(Kernels(played, 5, 6), index=1))
    taps.forward.remove()
    model(torch.ones(1))  # nothing is seen of it
    taps.install()
    model(torch.ones(1)).sum().backward()
    rows = known(played, taps)
    assert [of(rows, name)["device"] for name in ("0", "1", "Sequential")] == ["cuda:0", "cuda:1", None]
    assert column(rows, "forward", "duration") == [3, 5, None]
    # the times of two devices cannot be compared: what lies between marks on both is not known
    assert [of(rows, name, "backward")["duration"] for name in ("0", "1", "Sequential")] == [0.004, None, None]
    assert set(played.entered) == {0, 1}


def test_a_call_that_raises_has_the_time_up_to_then(played: PlayedCuda, taps: Taps) -> None:
    class Raises(Kernels):
        def forward(self, x: Any) -> Any:
            super().forward(x)
            raise KeyError

    with pytest.raises(KeyError):
        to_cuda(Raises(played, 3, 4))(torch.ones(1))
    (row,) = known(played, taps)
    assert (row["failed"], row["duration"]) == (True, pytest.approx(0.003))


# ---- what is not known


def test_times_are_null_until_the_device_has_reached_them(played: PlayedCuda, taps: Taps) -> None:
    model = model_on(played)
    model(torch.ones(1)).sum().backward()
    played.reached = 0
    rows = known(played, taps)
    assert {row["duration"] for row in rows} == {row["total_duration"] for row in rows} == {None}
    assert {row["allocated"] for row in rows} == {None} and all(row["host_duration"] is not None for row in rows)
    played.reached = None
    assert None not in column(known(played, taps), "backward", "duration")


def test_rows_appear_as_the_device_finishes(played: PlayedCuda, taps: Taps) -> None:
    model = model_on(played)
    begin = played.clock.now
    model(torch.ones(1))
    played.reached = begin + 5 * MS  # 1 of the root, 3 of the first leaf, 5 of the second
    taps.device.drain()
    assert column(taps.table(), "forward", "duration") == [3, None, None, None]


def test_only_a_row_without_a_time_and_those_around_it_are_null(played: PlayedCuda, taps: Taps) -> None:
    model = model_on(played)
    model(torch.ones(1))
    clock = taps.device.clocks.of_index[0]
    take, taken = clock.take, []

    def none_for_the_third() -> Any:
        taken.append(1)
        return None if len(taken) == 3 else take()

    clock.take = none_for_the_third
    start = played.clock()
    model(torch.ones(1)).sum().backward()
    rows = [row for row in known(played, taps) if row["start_ns"] > start]
    # the first child had no event to begin with: it is not known, nor is what its caller did itself
    assert column(rows, "forward", "duration") == [None, 5, None, 1]
    assert column(rows, "forward", "total_duration") == [None, 5, 8, 9]
    assert column(rows, "backward", "duration").count(None) == 0


def test_a_mark_without_a_time_affects_only_the_rows_around_it(
    played: PlayedCuda, taps: Taps, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = to_cuda(nn.Sequential(*(Kernels(played, 1, ms) for ms in (2, 3, 4))))
    loss = model(torch.ones(1, requires_grad=True) * 1).sum()
    clock = taps.device.clocks.of_index[0]
    timed, seen = clock.mark, []

    def not_the_third(*args: Any) -> None:
        seen.append(1)
        if len(seen) != 3:
            timed(*args)

    clock.mark = not_the_third
    loss.backward()
    rows = known(played, taps)
    found = {row["module"]: row["duration"] for row in rows if row["stage"] == "backward"}
    assert (found["0"], found["1"], found["2"]) == (pytest.approx(0.002), None, None)


def test_a_row_has_no_device_time_when_the_stock_of_events_is_empty(
    played: PlayedCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clocks, "EVENTS", 4)
    with tapped() as taps:
        model = model_on(played)
        for _ in range(3):
            model(torch.ones(1)).sum().backward()
        rows = known(played, taps)
        assert sum(row["duration"] is not None for row in rows) <= 4 < len(rows)
        model(torch.ones(1))  # those that are back serve again
        rows = known(played, taps)
        assert played.times_made < 20
        assert taps.rows(DEVICE)[-1]["host_ns"] > max(row["start_ns"] for row in rows if row["stage"] == "backward")


def test_a_device_that_used_the_stock_first_leaves_the_others_their_share(
    played: PlayedCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clocks, "EVENTS", 24)
    with tapped() as taps:
        first, second = model_on(played), to_cuda(Kernels(played, 7, 8), index=1)
        for _ in range(3):
            first(torch.ones(1)).sum().backward()
        known(played, taps)
        for _ in range(3):
            for model in (second, first, first, first):
                model(torch.ones(1)).sum().backward()
            rows = known(played, taps)
        assert {row["device"] for row in rows} >= {"cuda:0", "cuda:1"} and played.times_made < 60
        times = [row["duration"] for row in rows if row["device"] == "cuda:1" and row["stage"] == "forward"]
        assert times[-1] == pytest.approx(0.007)


def test_a_stuck_device_holds_no_more_than_the_stock_of_events(
    played: PlayedCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clocks, "EVENTS", 100)
    with tapped() as taps:
        model, played.reached = model_on(played), 0
        for _ in range(200):
            model(torch.ones(1)).sum().backward()
            taps.device.drain()
        gc.collect()
        assert 100 <= len(played.made) <= 100 + 1  # an anchor


def test_nothing_is_recorded_while_a_graph_is_captured(played: PlayedCuda, taps: Taps) -> None:
    model = model_on(played)
    played.capturing = True
    model(torch.ones(1)).sum().backward()
    played.capturing = False
    assert len(taps.rows(SPANS)) == 5 and taps.rows(MARKS)
    assert {row["duration"] for row in known(played, taps)} == {None}


def test_rows_that_retention_dropped_are_null(played: PlayedCuda, taps: Taps) -> None:
    model = model_on(played)
    model(torch.ones(1))
    played.catch_up()
    taps.device.drain()
    stream = taps.streams[DEVICE]
    for _ in range(stream.capacity):
        stream.append(*[0] * (len(stream.slots) - 1))
    assert column(taps.table(), "forward", "duration") == [None] * 4


# ---- how exact it is


def test_a_time_after_hours_of_training_is_exact_to_a_microsecond(played: PlayedCuda, taps: Taps) -> None:
    model = model_on(played)
    for hours in range(5):
        played.clock.now += hours * 3600 * 1000 * MS
        model(torch.ones(1)).sum().backward()
        played.catch_up()
    rows = known(played, taps)
    leaf = [row["duration"] for row in rows if row["module"] == "inner.1" and row["stage"] == "forward"]
    assert leaf == pytest.approx([0.005] * 5, abs=1e-6)


def test_a_step_of_some_seconds_adds_up(played: PlayedCuda, taps: Taps) -> None:
    model = to_cuda(nn.Sequential(*(Kernels(played, 700.001, 900.003) for _ in range(5))))
    played.launch(model, "before", MS)

    def rest(*_: Any) -> None:  # the host goes on too: new anchors on the way
        played.clock.sleep(300 * MS)

    for layer in model:
        layer.register_forward_hook(rest)
        layer.register_forward_hook(lambda module, given, made: made.register_hook(rest) and None)
    model(torch.ones(1)).sum().backward()
    rows = known(played, taps)
    assert column(rows, "backward", "duration") == [900] * 5 + [0]
    assert sum(row["duration"] for row in rows if row["stage"] == "forward") == pytest.approx(3.500005, abs=2e-6)
    assert sum(row["duration"] for row in rows if row["stage"] == "backward") == pytest.approx(4.500015, abs=2e-6)


# ---- what it leaves behind


def test_an_event_that_raises_turns_the_device_off_and_training_goes_on(played: PlayedCuda) -> None:
    taps = Taps.made()
    taps.install()
    try:
        model = model_on(played)
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(1))
        played.fails = RuntimeError("CUDA error: an illegal memory access was encountered")
        model(torch.ones(1)).sum().backward()
        sgd.step()
        assert taps.faults and {text[:21] for text in taps.faults} == {"device: RuntimeError("}
        assert len(taps.rows(SPANS)) == 4 + 4 + 1 + 1
    finally:
        taps.close()


def test_an_event_that_raises_on_the_agents_thread_is_named(played: PlayedCuda) -> None:
    taps = Taps.made()
    taps.install()
    model_on(played)(torch.ones(1))
    played.catch_up()
    played.event.query = lambda event: 1 / 0  # type: ignore[method-assign, assignment, return-value]
    taps.device.drain()
    assert taps.faults == ["device: ZeroDivisionError('division by zero')"]
    taps.close()


def test_removal_drops_every_event_and_leaves_hooks_inert(played: PlayedCuda) -> None:
    taps = Taps.made()
    taps.install()
    model = model_on(played)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = model(torch.ones(1)).sum()
    taps.close()
    gc.collect()
    assert not played.made
    made = played.times_made
    loss.backward()
    model(torch.ones(1)).sum().backward()
    sgd.step()
    assert played.times_made == made and not taps.faults
    for home in ("torch.nn.modules.module", "torch.optim.optimizer"):
        assert vars(sys.modules[home])["_probe_clock"] is perf_counter_ns


def test_a_call_under_way_survives_every_change(played: PlayedCuda, taps: Taps) -> None:
    changes: list[Callable[[], None]] = [
        lambda: taps.device.switch(BARE),
        lambda: taps.device.switch(SAMPLED),
        lambda: (taps.forward.remove(), taps.device.switch(BARE)),
        taps.install,
        lambda: setattr(taps.forward, "around", lambda functions: functions) or taps.forward.install(),
    ]
    model = model_on(played)
    model.inner[0].register_forward_hook(lambda *_: changes.pop(0)() and None)
    while changes:
        model(torch.ones(1)).sum().backward()
    assert not taps.faults


def test_weights_are_the_same_with_and_without_it(played: PlayedCuda) -> None:
    def trained() -> bytes:
        torch.manual_seed(0)
        model = to_cuda(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)))
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(20):
            model(torch.randn(3, 4, generator=torch.Generator().manual_seed(step))).pow(2).mean().backward()
            sgd.step()
            sgd.zero_grad()
        return b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())

    without = trained()
    with tapped() as taps:
        assert trained() == without
        assert len(known(played, taps)) > 100


def test_a_job_without_cuda_has_no_device_stream_and_unwrapped_functions() -> None:
    with tapped() as taps:
        assert taps.device.state is None and DEVICE not in taps.streams
        assert DEVICE not in agent_memory.descriptors(os.getpid())
        functions = vars(torch.nn.modules.module)
        assert all(functions[name] is value for name, value in taps.forward.marking.items())


def test_cuda_that_is_initialized_later_is_found(played: PlayedCuda) -> None:
    played.initialized = False
    with tapped() as taps:
        model = model_on(played)
        model(torch.ones(1)).sum().backward()
        assert taps.device.state is None
        played.initialized = True
        taps.install()  # as at the next block of sampled steps
        assert taps.device.state == "on"
        model(torch.ones(1)).sum().backward()
        rows = known(played, taps)
        assert sorted(column(rows, "forward", "duration"), key=str) == [0, 1, 3, 5, None, None, None, None]
        assert column(rows, "backward", "duration").count(None) == 4


@pytest.mark.parametrize("later", [False, True], ids=["before", "after"])
def test_where_devices_are_left_alone_the_tap_stays_off_whenever_cuda_is_initialized(later: bool) -> None:
    clock = Clock()
    with napping(clock), played_cuda(clock, left_alone=True) as played:
        played.initialized = not later
        with tapped() as taps:
            model = model_on(played)
            model(torch.ones(1)).sum().backward()
            played.initialized = True
            for _ in range(2):
                taps.install()  # as at the next block of sampled steps
                model(torch.ones(1)).sum().backward()
            taps.device.drain()
            what = "devices" if later else "CUDA is in use"
            assert taps.device.state == f"off: {what}, which --no-devices leaves alone"
            assert (played.times_made, played.entered, DEVICE in taps.streams) == (0, [], False)
            assert len(column(taps.table(), "forward", "host_duration")) == 12


@pytest.mark.parametrize(
    "change, why",
    [
        (lambda patch: patch.setattr(torch.version, "hip", "6.0"), "off: ROCm is in use, which was not tested yet"),
        (lambda patch: patch.delattr(torch._C, "_cuda_memoryStats"), "off: module 'torch._C' has no attribute"),
    ],
    ids=["ROCm", "unknown torch"],
)
def test_the_state_says_why_device_times_cannot_be_taken(
    played: PlayedCuda, monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], None], why: str
) -> None:
    change(monkeypatch)
    with tapped() as taps:
        model_on(played)(torch.ones(1))
        assert taps.device.state is not None and taps.device.state.startswith(why)
        assert {row["duration"] for row in taps.table()} == {None}


def test_the_fallback_on_hooks_takes_no_device_times(played: PlayedCuda) -> None:
    with tapped(ForwardHooks) as taps:
        model_on(played)(torch.ones(1))
        assert taps.device.state == "off: this torch's _wrapped_call_impl is not known"


def test_threads_that_call_at_once_have_their_own_times(played: PlayedCuda, taps: Taps) -> None:
    models = [model_on(played) for _ in range(4)]
    threads = [threading.Thread(target=lambda model=model: model(torch.ones(1))) for model in models]
    for thread in threads:
        thread.start()
        thread.join()
    rows = known(played, taps)
    assert sorted(column(rows, "forward", "duration")) == sorted([0.0, 1.0, 3.0, 5.0] * 4)
