"""Checks that the agent does no harm on a device, in order of risk."""

from __future__ import annotations

import json
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

from rig import CHECKS, JOBS, ROOT, TRAINING, Check, Found, Rig, Timed, check, descriptors
from until import until

from target import Target

STEPS = 300
ENDS = """SELECT operation_type, async_op, state, COUNT(*) AS n, COUNT(*) - COUNT(duration_ms) AS untimed,
    MIN(duration_ms) AS least_ms, MEDIAN(duration_ms) AS median_ms, MAX(duration_ms) AS most_ms
FROM python.nccl_trace WHERE state <> 'in_flight' OR age_ms > 3000 GROUP BY ALL ORDER BY ALL"""
TIMED = "SELECT stage, COUNT(*) AS n, COUNT(duration) AS timed, SUM(duration) AS s FROM python.torch_trace GROUP BY 1"


def used_mb(rig: Rig, pid: int) -> int:
    """Device memory that this job's process has taken, context and all, as the driver has it."""
    code = "import torch; free, total = torch.cuda.mem_get_info(); print((total - free) >> 20)"
    return int(rig.probe(pid, "eval", code))


def looked_at(rig: Rig, pid: int) -> None:
    """What a user does, twice, and the agent stays."""
    for _ in range(2):
        rig.probe("attach", pid)
        rig.probe(pid, "query", "SELECT module, stage, SUM(duration) FROM python.torch_trace GROUP BY ALL")
        rig.probe(pid, "query", "SELECT * FROM python.nccl_trace")
        rig.probe(pid, "hang")
        rig.probe(pid, "detach")
    rig.probe("attach", pid)


def finals(job: Target, ranks: int) -> list[tuple[str, str, int]]:
    """(rank, hash of the losses, peak bytes) of each rank."""
    output = job.wait_for("final", times=ranks, timeout=120)
    lines = [line.split()[1:] for line in output.splitlines() if line.startswith("final")]
    return sorted((rank, losses, int(peak)) for rank, losses, peak in lines)


def compared(rig: Rig, kind: str, steps: int = STEPS) -> Found:
    """A job alone, and the same one while users come and go: the same losses and peak of memory?"""
    ranks, over = min(2, rig.devices), rig.folder / "over"
    alone = rig.job(TRAINING, kind, steps, ranks=ranks, ready="")
    watched = rig.job(TRAINING, kind, steps, "--until", over, ranks=ranks)
    looked_at(rig, watched.pid)
    watched.wait_for(f"made {steps}", times=ranks)
    until(lambda: rig.rows(watched.pid, TIMED), 20)
    states = rig.rows(watched.pid, ENDS)
    agents = rig.rows(watched.pid, "SELECT device_tap, collectives_tap FROM probe.agents")
    timed = (
        "SELECT stage, COUNT(*) AS n, COUNT(duration) AS timed, SUM(duration) AS s FROM python.torch_trace GROUP BY 1"
    )
    modules = rig.rows(watched.pid, timed)
    over.touch()
    own, seen = finals(alone, ranks), finals(watched, ranks)
    still = sum(row["n"] for row in states if row["state"] == "in_flight")
    same_losses, same_peak = ([a[i] for a in own] == [s[i] for s in seen] for i in (1, 2))
    lines = [f"losses {'equal' if same_losses else 'differ'}, peak {[a[2] for a in own]} alone, {[s[2] for s in seen]}"]
    lines += [f"in flight for long: {still}", f"taps: {agents}", *map(str, states), *map(str, modules)]
    on = all(each["device_tap"] == "on" and not each["collectives_tap"].startswith("off") for each in agents)
    return Found(same_losses and same_peak and not still and on, lines)


SAME = "The losses and the peak of device memory are those of the job alone, and each operation has an end."
DIFFERS = "The agent changes the job, or misses ends of operations: attach with --no-devices, and report this."
FORKS = 60  # steps, each with a child
KINDS = {
    "operations": DIFFERS,
    "pipeline": "Batched sends and receives are wrongly followed.",
    "forks": f"Something of CUDA is freed in one of {FORKS} forked children: do not use it with loaders.",
    "captures": "A thread of ours breaks captures: do not attach to such jobs.",
    "ddp": DIFFERS,
    "fsdp2": DIFFERS,
    "tensor_parallel": DIFFERS,
    "mixed": DIFFERS,
    "capturable": "An optimizer that is captured in a graph is changed by the taps.",
    "reduce_overhead": "torch.compile with CUDA graphs is changed by the taps.",
}
CHECKS += [
    Check(kind, SAME, otherwise, partial(compared, kind=kind, steps=FORKS if kind == "forks" else STEPS), alone=False)
    for kind, otherwise in KINDS.items()
]


@check(
    "What it says fits this machine; devices, driver and libraries have versions.", "Report the lines that do not fit."
)
def doctor(rig: Rig) -> Found:
    job = rig.job(TRAINING, "mixed", 10, "--until", rig.folder / "over")
    lines = rig.probe("doctor", "--gpu", job.pid).splitlines()
    rig.probe("attach", job.pid)
    until(lambda: rig.rows(job.pid, "SELECT uuid FROM host.gpu_trace"), 20)
    sampled = rig.rows(job.pid, "SELECT DISTINCT device, uuid, name FROM host.gpu_trace")
    (rig.folder / "over").touch()
    return Found(len(sampled) == 1, [*lines, f"sampled: {sampled}"])


@check("A job on the CPU gets no context on a device.", "The agent takes device memory from others.")
def contexts(rig: Rig) -> Found:
    job = rig.job(ROOT / "tests" / "targets" / "loop.py")
    looked_at(rig, job.pid)
    code = "import torch; print([torch._C._cuda_hasPrimaryContext(i) for i in range(torch.cuda.device_count())])"
    told = rig.probe(job.pid, "eval", "--now", code).strip()
    return Found("True" not in told, [f"a context on each device: {told}"])


@check(
    "While the main thread waits for a kernel of 12 s, every command answers as in a job that goes on.",
    "A call of the agent holds the GIL or waits for the driver: such a job seems hung to probe.",
    alone=True,
)
def main_thread_waits(rig: Rig) -> Found:
    job = rig.job(JOBS / "device_job.py", "waits", 3, ready="waiting 1")
    timed = Timed(rig)
    timed("attach", job.pid)
    timed(job.pid, "query", "SELECT COUNT(*) FROM python.torch_trace")
    timed(job.pid, "eval", "--now", "1 + 1")
    timed(job.pid, "stack")
    hang = timed(job.pid, "hang")
    held = "over 1" not in job.output
    timed(job.pid, "detach")
    held = held and "over 1" not in job.output
    return Found(held, [f"answered while it waited: {held}", *timed.lines, "hang said:", *hang.splitlines()])


@check(
    "hang says that the device has not come to the collective that is in flight.",
    "hang blames a rank or the network for a kernel that does not end.",
    alone=True,
)
def stuck_kernel(rig: Rig) -> Found:
    file = rig.folder / "stuck"
    job = rig.job(JOBS / "device_job.py", "stuck", 1 << 30, STUCK_AT=str(file))
    rig.probe("attach", job.pid)
    time.sleep(3)
    file.touch()
    job.wait_for("stuck")
    time.sleep(6)  # until it has been quiet for longer than usual
    report = json.loads(rig.probe(job.pid, "hang", "--json", status=None))
    return Found(report["code"] == "device", [report["verdict"], *report["why"]])


@check("20 times attached and detached: as many threads, descriptors and MB as before.", "Something stays.", alone=True)
def twenty_times(rig: Rig) -> Found:
    job = rig.job(TRAINING, "operations", 100, "--until", rig.folder / "over")
    counts: list[dict[str, Any]] = []
    for _ in range(20):
        rig.probe("attach", job.pid)
        used = used_mb(rig, job.pid)
        rig.probe(job.pid, "query", "SELECT COUNT(*) FROM python.nccl_trace")
        rig.probe(job.pid, "detach")
        threads = len(list(Path(f"/proc/{job.pid}/task").iterdir()))
        counts.append({"threads": threads, "descriptors": len(descriptors(job.pid)), "device_mb": used})
    (rig.folder / "over").touch()
    job.wait_for("final", timeout=60)
    same = all(counts[1][name] == counts[-1][name] for name in counts[0])
    return Found(same, [f"after {n}: {json.dumps(counts[n - 1])}" for n in (1, 2, 10, 20)])


@check("Two threads capture and train while the agent's thread asks for events.", "Captures are broken.")
def captures_under_load(rig: Rig) -> Found:
    job = rig.job(JOBS / "device_job.py", "captures_under_load", 60, "--until", rig.folder / "over")
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            rig.probe(job.pid, "query", "SELECT COUNT(*) FROM python.torch_trace")

    rig.probe("attach", job.pid)
    rig.probe(job.pid, "set", "sample=1")
    asking = threading.Thread(target=ask)
    asking.start()
    try:
        job.wait_for("made 60", timeout=90)
    finally:
        stop.set()
        asking.join()
    (rig.folder / "over").touch()
    return Found(True, [job.wait_for("final", timeout=60).splitlines()[-1]])
