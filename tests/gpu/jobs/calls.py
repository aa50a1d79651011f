"""What each call that the taps make takes on this device, in us: the best of five runs."""

import statistics
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[each]) for each in (3, 2)]

import torch  # noqa: E402
from tapped import tapped  # noqa: E402

from probe.agent.taps.cuda import Cuda  # noqa: E402


def took(function, times=5000):
    best = 1e9
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(times):
            function()
        best = min(best, (time.perf_counter() - start) / times * 1e6)
    return f"{best:.2f} us"


def main():
    x = torch.ones(8, device="cuda:0")
    cuda, stream = Cuda(), torch.cuda.current_stream(0)
    print("query and elapsed time without the GIL:", cuda._reached is not None)
    first, last = cuda.event(), cuda.event()
    first.record()
    last.record()
    torch.cuda.synchronize()
    calls = {
        "launch of a kernel": lambda: x.add_(1),
        "record": lambda: first.record(stream),
        "current_stream": lambda: cuda.stream(0),
        "is_capturing": cuda.is_capturing,
        "current_device": cuda.current_device,
        "memoryStats": lambda: cuda.memory(0),
        "new event, recorded": lambda: cuda.event().record(stream),
        "set_device and capture mode": lambda: cuda.enter(0),
        "capture mode there and back": lambda: cuda.aside(bool),
    }
    for name, call in calls.items():
        print(f"{name}: {took(call)}")
    first.record()
    last.record()
    torch.cuda.synchronize()
    print(f"reached: {took(lambda: cuda.reached(last))}; by torch {took(last.query)}")
    print(f"elapsed: {took(lambda: cuda.elapsed_ns(first, last))}")
    first.record()
    last.record()
    torch.cuda.synchronize()
    print(f"between two records with nothing between them: {cuda.elapsed_ns(first, last)} ns")
    modules()


def modules(count=100):
    """What a module's forward and backward take on the host, where the device is the faster one."""
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(count))).to("cuda:0")
    given = torch.ones(8, 8, device="cuda:0", requires_grad=True)
    print(f"a module's forward and backward, alone: {per_module(model, given, count):.1f} us")
    with tapped(stream_bytes=64 << 20) as taps:
        print(f"recorded: {per_module(model, given, count, taps.device.drain):.1f} us")
        print("rows with a device time:", sum(row["duration"] is not None for row in taps.table()))


def per_module(model, given, count, drain=lambda: None):
    times = []
    for _ in range(30):
        torch.cuda.synchronize()
        drain()
        start = time.perf_counter()
        model(given).sum().backward()
        times.append(time.perf_counter() - start)
    return statistics.median(times) / count * 1e6


main()
