"""What the machine tables say of a job that uses a known part of the machine, against its own clocks."""

from __future__ import annotations

import _ctypes
import csv
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from played_nvml import module_text
from until import until

from target import Probe, Start, Target, links

SECONDS = 6


def said(job: Target) -> list[dict[str, float]]:
    return [json.loads(line) for line in job.output.splitlines() if line.startswith("{")]


def rows(probe: Probe, job: Target, sql: str) -> list[dict[str, Any]]:
    return list(json.loads(probe(job.pid, "query", "--format", "json", sql).stdout))


@pytest.fixture
def job(start: Start, probe: Probe, tmp_path: Path) -> Iterator[Target]:
    """One that reads from storage: what lies in a tmpfs is read from no storage."""
    kind = subprocess.run(["stat", "-f", "-c", "%T", tmp_path], capture_output=True, text=True).stdout.strip()
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent if kind == "tmpfs" else tmp_path) as folder:
        job = start("loads.py", folder)
        probe("attach", job.pid)
        yield job


def test_the_sample_matches_what_the_job_uses(job: Target, probe: Probe) -> None:
    sql = "SELECT epoch_us(time) / 1e6 AS at, * EXCLUDE (time) FROM host.process_trace ORDER BY start_ns"
    found = until(lambda: found if len(found := rows(probe, job, sql)) >= SECONDS else None)
    lines = until(lambda: lines if (lines := said(job))[-1]["time"] > found[-1]["at"] else None)
    cpu_s, read_mb = used(lines, found, "cpu"), used(lines, found, "read") / (1 << 20)
    whole = found[1:]  # the first has no rates, and the attach's own thread may still be there
    inside = [line for line in lines if whole[0]["at"] <= line["time"] <= whole[-1]["at"]]
    assert total(found, "cpu_pct") == pytest.approx(100 * cpu_s, rel=0.15, abs=3 * SECONDS)
    assert total(found, "read_mb_s") == pytest.approx(read_mb, rel=0.2, abs=0.5 * SECONDS)
    assert all(256 < row["rss_mb"] < 400 for row in found)
    assert {row["threads"] for row in whole} == {line["threads"] for line in inside}
    assert all(row["context_switches_s"] > 10 for row in whole)
    assert all(0 <= row["host_cpu_pct"] <= 100 and 0 < row["host_memory_used_pct"] < 100 for row in whole)
    assert all(row["gil_wait_us"] >= 0 for row in found)
    assert all(0 <= row["core_wait_pct"] <= 100 for row in whole)


def total(found: list[dict[str, Any]], column: str) -> float:
    """The samples of a rate, each times the seconds since the sample before it."""
    return sum(row[column] * (row["at"] - before["at"]) for before, row in pairwise(found))


def used(lines: list[dict[str, float]], found: list[dict[str, Any]], name: str) -> float:
    """What the job itself counted from the first sample to the last one: its machine may be busy, but not unevenly
    between two of its lines."""

    def at(moment: float) -> float:
        before = [line for line in lines if line["time"] <= moment][-1]
        after = next(line for line in lines if line["time"] > moment)
        share = (moment - before["time"]) / (after["time"] - before["time"])
        return before[name] + share * (after[name] - before[name])

    return at(found[-1]["at"]) - at(found[0]["at"])


def test_each_second_has_exactly_one_row(job: Target, probe: Probe) -> None:
    time.sleep(SECONDS)
    starts = [row["start_ns"] for row in rows(probe, job, "SELECT start_ns FROM host.process_trace ORDER BY 1")]
    seconds = [start // 10**9 for start in starts]
    assert len(seconds) == len(set(seconds)) >= SECONDS - 1
    assert all(later - earlier >= 0.4e9 for earlier, later in pairwise(starts))


def test_a_job_without_devices_says_why_there_are_no_device_rows(job: Target, probe: Probe) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("there are devices")
    done = probe(job.pid, "query", "--format", "csv", "SELECT device FROM host.gpu_trace")
    assert list(csv.reader(done.stdout.splitlines())) == [["device"]]
    assert "gpu is off: no NVML library" in done.stderr
    (agent,) = rows(probe, job, "SELECT process_tap, gpu_tap FROM probe.agents")
    assert agent == {"process_tap": "on", "gpu_tap": "off: no NVML library"}


def test_detach_leaves_nothing_of_the_samplers(job: Target, probe: Probe) -> None:
    def files() -> list[str]:
        return sorted(link for link in links(job.pid) if link.startswith("/proc/"))

    rows(probe, job, "SELECT COUNT(*) FROM host.process_trace")
    until(lambda: files() == [f"/proc/{job.pid}/statm"], why=files)  # the others are opened for a moment each second
    probe(job.pid, "detach")
    until(lambda: not files(), 5, why=files)  # its thread ends a moment after it has said so


FORKS = """
import json, os
reader, writer = os.pipe()
child = os.fork()
if not child:
    paths = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    links = [os.readlink(path) for path in paths if os.path.islink(path)]
    os.write(writer, json.dumps(links).encode())
    os._exit(0)
os.close(writer)
print(os.read(reader, 1 << 20).decode())
os.close(reader)
os.waitpid(child, 0)
"""


def test_a_forked_child_has_none_of_the_files(job: Target, probe: Probe) -> None:
    rows(probe, job, "SELECT COUNT(*) FROM host.process_trace")
    links = json.loads(probe(job.pid, "eval", "--now", FORKS).stdout.splitlines()[0])
    ours = [link for link in links if link.startswith("/proc/") or "memfd:probe" in link]
    assert links and set(ours) <= {f"/proc/{job.pid}/task"}  # which the job itself reads again and again


def test_devices_of_a_simulated_driver_have_rows_until_detach(
    start: Start, probe: Probe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pynvml.py").write_text(module_text("a", "b"))
    shutil.copy(_ctypes.__file__, tmp_path / "libnvidia-ml.so.1")  # any library will do, for it is only opened
    job = start("loads.py", str(tmp_path), env={"LD_LIBRARY_PATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": "1,0"})
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # where the command finds what it lends
    probe("attach", job.pid)
    sql = "SELECT device, uuid, COUNT(*) AS n, AVG(power_w) AS power FROM host.gpu_trace GROUP BY ALL ORDER BY device"

    def both() -> list[dict[str, Any]] | None:
        found = rows(probe, job, sql)
        return found if len(found) == 2 and all(row["n"] >= 2 for row in found) else None

    found = until(both)
    assert [(row["device"], row["uuid"]) for row in found] == [("cuda:0", "GPU-b-1234"), ("cuda:1", "GPU-a-1234")]
    assert all(row["n"] >= 2 and row["power"] == pytest.approx(412.345) for row in found)
    assert rows(probe, job, "SELECT gpu_tap FROM probe.agents") == [{"gpu_tap": "on"}]
    modules = "import sys; print(sorted(name for name in sys.modules if 'pynvml' in name))"
    assert probe(job.pid, "eval", "--now", modules).stdout.splitlines() == ["['_probe_agent.pynvml']"]
    probe(job.pid, "detach")


def test_a_broken_driver_is_reported_and_the_process_still_sampled(start: Start, probe: Probe, tmp_path: Path) -> None:
    shutil.copy(_ctypes.__file__, tmp_path / "libnvidia-ml.so.1")
    job = start("loads.py", str(tmp_path), env={"LD_LIBRARY_PATH": str(tmp_path)})
    probe("attach", job.pid)
    assert rows(probe, job, "SELECT process_tap, gpu_tap FROM probe.agents") == [
        {"process_tap": "on", "gpu_tap": "off: NVML does not start: Function Not Found"}
    ]
    assert rows(probe, job, "SELECT COUNT(*) AS n FROM host.process_trace")[0]["n"] >= 1
    probe(job.pid, "detach")
