"""Checks of what is recorded on a device, and what it costs there."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from rig import JOBS, Found, Rig, check, printed

JOB = JOBS / "device_job.py"
BY_SIZE = """SELECT bytes // group_size AS size, state, COUNT(*) AS n, MEDIAN(duration_ms) AS ms,
    QUANTILE_CONT(duration_ms, 0.9) AS p90_ms FROM python.nccl_trace WHERE bytes > 50000 GROUP BY ALL ORDER BY ALL"""
ALLOCATING = JOBS.parents[1] / "played" / "jobs" / "allocating.py"
HELD = """SELECT SUM(bytes) AS listed, SUM(bytes) FILTER (kind <> 'other') AS named FROM python.tensor_trace
    WHERE device = 'cuda:0'"""
ACTIONS = """SELECT action, COUNT(*) AS n, SUM(bytes) AS bytes, 1e3 * MEDIAN(duration) AS ms
    FROM python.allocation_trace GROUP BY ALL ORDER BY ALL"""
WINDOW_S, ROUNDS = 2.0, 3
SETTLE_S = {"alone": 0.3, "attached": 4.0, "every step": 0.5}  # it chooses how often it samples


@check(
    "Gathers take as long as the job's own events around them say, within 5 %.",
    "Durations of collectives are wrong on devices.",
    alone=True,
)
def durations(rig: Rig) -> Found:
    job = rig.job(JOB, "durations", 200)
    rig.probe("attach", job.pid)
    said = job.wait_for("own", times=3, timeout=60)
    rows = rig.rows(job.pid, BY_SIZE)
    own = {int(size): float(ms) for _, size, ms in (each.split() for each in said.splitlines() if each[:4] == "own ")}
    lines = [f"{size} bytes: own {ms:.4f} ms" for size, ms in own.items()] + [str(row) for row in rows]
    exact = [row for row in rows if row["state"] == "done" and row["size"] > min(own)]
    close = all(abs(row["ms"] / own[row["size"]] - 1) < 0.05 for row in exact)
    return Found(bool(exact) and close, lines)


@check("Every one passes.", "Device times are not those of torch's profiler, or cost too much.", alone=True)
def device_times(rig: Rig) -> Found:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-sv", "--tb=short", "tests/gpu"]
    status, lines = printed(command, 100)
    return Found(status == 0, lines[-70:])


def windows(rig: Rig, kind: str) -> dict[str, list[float]]:
    """Mean step time in ms of each arm, in one window after the other."""
    job = rig.job(JOB, kind, 1 << 30)
    times: dict[str, list[tuple[float, float]]] = {"alone": [], "attached": [], "every step": []}
    arms: list[tuple[str, Callable[[], Any]]] = [
        ("alone", lambda: None),
        ("attached", lambda: rig.probe("attach", job.pid)),
        ("every step", lambda: rig.probe(job.pid, "set", "sample=1")),
    ]
    time.sleep(2)
    for _ in range(ROUNDS):
        for arm, begin in arms:
            begin()
            start = time.monotonic() + SETTLE_S[arm]
            time.sleep(WINDOW_S + SETTLE_S[arm])
            times[arm].append((start, time.monotonic()))
        rig.probe(job.pid, "detach")
    steps = [line.split()[1:] for line in job.output.splitlines() if line.startswith("step ")]
    ended = [(int(end) / 1e9, int(took) / 1e6) for end, took in (each for each in steps if len(each) == 2)]
    return {
        arm: [statistics.fmean(ms for end, ms in ended if first <= end <= last) for first, last in each]
        for arm, each in times.items()
    }


def overhead(rig: Rig, kind: str) -> Found:
    of_arm = windows(rig, kind)
    lines = []
    for arm, means in of_arm.items():
        ratios = sorted(mean / alone for mean, alone in zip(means, of_arm["alone"], strict=True))
        ratio = f"{statistics.median(ratios):.4f} ({ratios[0]:.3f} to {ratios[-1]:.3f})"
        lines.append(f"{arm}: {statistics.median(means):.3f} ms, of a window's mean step; over alone {ratio}")
    return Found(None, lines)


@check("A figure: a step of 8 sequences of 1,024 tokens.", "", alone=True)
def gpt2_large_batch(rig: Rig) -> Found:
    return overhead(rig, "gpt2_large_batch")


@check("A figure: a step of 128 tokens, which the host cannot issue as fast as the device makes it.", "", alone=True)
def gpt2_one_sequence(rig: Rig) -> Found:
    return overhead(rig, "gpt2_one_sequence")


@check("A figure: a hundred synchronous all_reduces.", "", alone=True)
def hundred_collectives(rig: Rig) -> Found:
    return overhead(rig, "hundred_collectives")


@check(
    "All that the allocator gave out is listed, 95 % of it with who holds it.", "Tensors on devices are not all seen."
)
def memory(rig: Rig) -> Found:
    job = rig.job(ALLOCATING, "gpt")
    rig.probe("attach", job.pid)
    (found,) = rig.rows(job.pid, HELD)
    allocated = int(rig.probe(job.pid, "eval", "import torch; print(torch.cuda.memory_allocated())").split()[-1])
    named, listed = (100 * found[each] / allocated for each in ("named", "listed"))
    rig.probe(job.pid, "memory", "--history", "--steps", "3")
    lines = [f"{named:.2f} % named, {listed:.2f} % listed of {allocated} bytes"]
    lines += [str(row) for row in rig.rows(job.pid, ACTIONS)]
    return Found(named > 95 and 99 < listed <= 100, lines)


@check("A figure: each call into the runtime that the taps make.", "", alone=True)
def calls(rig: Rig) -> Found:
    return Found(None, printed([sys.executable, JOBS / "calls.py"], 60)[1][-30:])


@check("No reading takes longer than 5 ms in the median.", "NVML holds up the agent's thread: leave that counter out.")
def nvml(rig: Rig) -> Found:
    from probe.agent.samplers import gpu

    library = gpu.pynvml_at(None)
    start = time.perf_counter()
    library.nvmlInit()
    lines, slowest = [f"nvmlInit: {1e3 * (time.perf_counter() - start):.2f} ms"], 0.0
    handle = library.nvmlDeviceGetHandleByIndex(0)
    for number, read in enumerate(gpu._READINGS):
        try:
            times, counters = timed_reading(lambda read=read: list(read(library, handle)))
        except library.NVMLError as error:
            lines.append(f"reading {number}: {error}")
            continue
        slowest = max(slowest, statistics.median(times))
        lines.append(f"reading {number}: {statistics.median(times):.3f} ms, at most {max(times):.3f}: {counters}")
    return Found(slowest < 5, lines)


def timed_reading(read: Callable[[], Any]) -> tuple[list[float], Any]:
    stamps = [time.perf_counter()]
    for _ in range(20):
        counters = read()
        stamps.append(time.perf_counter())
    return [1e3 * (last - first) for first, last in pairwise(stamps)], counters
