"""Device times on a real device: against torch's profiler and own events, what they cost and must not break."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gpt2 import gpt2  # noqa: E402
from tapped import Taps, tapped  # noqa: E402

MB = 1 << 20
RING = 64 * MB


def known(taps: Taps) -> list[dict[str, Any]]:
    torch.cuda.synchronize()
    taps.device.drain()
    return taps.table()


def blocks_of(model: Any) -> dict[str, Any]:
    return {name: module for name, module in model.named_modules() if type(module).__name__ == "Block"}


def test_forward_times_are_those_of_ones_own_events(device: str) -> None:
    model, step = gpt2(device)
    for _ in range(3):
        step()
    pairs: dict[str, list[Any]] = defaultdict(list)

    def record(name: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            pairs[name].append(torch.cuda.Event(enable_timing=True))
            pairs[name][-1].record()

        return hook

    for name, module in blocks_of(model).items():
        module.register_forward_pre_hook(record(name))
        module.register_forward_hook(record(name))
    with tapped(stream_bytes=RING) as taps:
        for _ in range(5):
            step()
        rows = known(taps)
    for name, events in pairs.items():
        own = [first.elapsed_time(last) / 1e3 for first, last in zip(events[::2], events[1::2], strict=True)]
        ours = [row["total_duration"] for row in rows if (row["module"], row["stage"]) == (name, "forward")]
        assert ours == pytest.approx(own, rel=0.02, abs=30e-6)


def test_times_are_those_of_torchs_profiler(device: str) -> None:
    _, step = gpt2(device, batch=24)  # so large that the device never waits for the host
    for _ in range(3):
        step()
    with tapped(stream_bytes=RING) as taps:
        for _ in range(5):
            step()
        rows = known(taps)
    sums: dict[str, float] = defaultdict(float)
    for row in rows:
        sums[row["stage"]] += row["duration"] / 5
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(5):
            step()
        torch.cuda.synchronize()
    kernels = sum(event.device_time for event in profile.events() if "CUDA" in str(event.device_type)) / 5 / 1e6
    print({"ours_ms": {stage: 1e3 * value for stage, value in sums.items()}, "profiler_kernels_ms": 1e3 * kernels})
    # the loss is nobody's, and a device that waits is no kernel
    assert sum(sums.values()) == pytest.approx(kernels, rel=0.1)


def test_what_is_recorded_is_cheap(device: str) -> None:
    _, step = gpt2(device)
    for _ in range(5):
        step()
    times: dict[bool, list[float]] = {True: [], False: []}
    with tapped(stream_bytes=RING) as taps:
        for watched in [True, False] * 10:
            if watched:
                taps.install()
            else:
                taps.remove()
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(5):
                step()
            torch.cuda.synchronize()
            times[watched].append(time.perf_counter() - start)
            taps.device.drain()
    ratio = statistics.median(times[True]) / statistics.median(times[False])
    print({"step_ms": 200 * statistics.median(times[False]), "ratio_with_all_steps_recorded": ratio})
    assert ratio < 1.10


def test_memory_is_that_of_the_allocator(device: str) -> None:
    model = torch.nn.Linear(1024, 1024, device=device)
    x = torch.ones(1024, 1024, device=device)
    with tapped() as taps:
        before = torch.cuda.memory_allocated()
        kept = model(x)
        after = torch.cuda.memory_allocated()
        (row,) = known(taps)
    assert (row["allocated"], row["allocated_delta"]) == (after / MB, (after - before) / MB) and kept is not None


def test_a_capture_is_not_broken_by_the_agents_thread(device: str) -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256, device=device) for _ in range(20)))
    x = torch.ones(64, 256, device=device)
    with tapped(stream_bytes=RING) as taps:
        over = threading.Event()

        def tend() -> None:
            while not over.wait(0.001):
                taps.device.drain()

        thread = threading.Thread(target=tend)
        thread.start()
        for _ in range(20):
            for _ in range(20):
                model(x)
            graph = torch.cuda.CUDAGraph()
            torch.cuda.synchronize()
            for _ in range(5):
                model(x)  # something to ask for while the graph is captured
            with torch.cuda.graph(graph):
                model(x)
            graph.replay()
        over.set()
        thread.join()


def test_a_thread_of_ours_makes_no_context_elsewhere(device: str) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one device")
    last = torch.cuda.device_count() - 1
    unused = [index for index in range(last) if not torch._C._cuda_hasPrimaryContext(index)]
    model = torch.nn.Linear(8, 8, device=f"cuda:{last}")
    with tapped() as taps:
        model(torch.ones(1, 8, device=f"cuda:{last}")).sum().backward()
        known(taps)
    assert not [index for index in unused if torch._C._cuda_hasPrimaryContext(index)]


def test_a_forked_child_ends_as_it_would(device: str) -> None:
    model = torch.nn.Linear(8, 8, device=device)
    with tapped() as taps:
        model(torch.ones(1, 8, device=device))
        child = os.fork()
        if not child:
            taps.device.forget()
            taps.device.clocks = None
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
