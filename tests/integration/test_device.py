"""A job on a played CUDA device: its rows have the device's times, and a job on the CPU has nothing of all this."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest
from until import stop, until

from probe.host import agent_memory
from probe.query.database import Database
from probe.snapshot.memory_source import MemorySource
from probe.snapshot.snapshot import Snapshot
from probe.streams import DEVICE
from probe.tables import TABLES
from target import Probe, Start, Target, until_ticked

STEPS = 40
TIMES_MS = {
    ("Kernels", "forward"): 1, ("inner", "forward"): 0, ("inner.0", "forward"): 3, ("inner.1", "forward"): 5,
    ("Kernels", "backward"): 2, ("inner", "backward"): 0, ("inner.0", "backward"): 4, ("inner.1", "backward"): 6,
    ("SGD", "step"): 0,
}  # fmt: skip
SQL = """
SELECT module, stage, MEDIAN(duration) * 1e3 AS ms, COUNT(*) AS rows, COUNT(duration) AS known,
    MAX(total_host_duration) > 0 AS on_host, MAX(allocated) AS mb, MAX(device) AS device
FROM python.torch_trace WHERE step < (SELECT MAX(step) FROM python.torch_trace) GROUP BY ALL
"""


def rows(probe: Probe, job: Target, sql: str) -> list[dict[str, Any]]:
    return list(json.loads(probe(job.pid, "query", "--format", "json", sql).stdout))


@pytest.fixture(scope="module")
def job(start_once: Start, probe: Probe) -> Target:
    job = start_once("on_cuda.py")
    probe("attach", job.pid)
    probe(job.pid, "set", "sample=1")
    known = "SELECT COUNT(DISTINCT step) AS steps FROM python.torch_trace WHERE duration > 0"
    until(lambda: rows(probe, job, known)[0]["steps"] >= STEPS)
    return job


def test_each_module_row_has_the_time_of_its_kernels(job: Target, probe: Probe) -> None:
    are_true(rows(probe, job, SQL))
    stop(job.pid)
    try:
        query = Database(TABLES)
        are_true(query.run(SQL, Snapshot([MemorySource(job.pid)])).to_pylist())
        query.close()
    finally:
        os.kill(job.pid, signal.SIGCONT)


def are_true(rows: list[dict[str, Any]]) -> None:
    found = {(row["module"], row["stage"]): row for row in rows}
    assert found.keys() == TIMES_MS.keys()
    for key, row in found.items():
        assert row["ms"] == pytest.approx(TIMES_MS[key], abs=0.2), (key, row)
        assert row["known"] >= 0.8 * row["rows"] and row["on_host"] and row["device"] == "cuda:0"
    assert (found["inner.0", "forward"]["mb"], found["Kernels", "forward"]["mb"]) == (120, 130)


# The child ends with the number of the agent's memfds that it still has.
FORK = """
import glob, os
child = os.fork()
if not child:
    os._exit(sum("memfd:probe" in os.readlink(path) for path in glob.glob("/proc/self/fd/*") if os.path.lexists(path)))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_child_ends_as_without_probe(job: Target, probe: Probe) -> None:
    assert probe(job.pid, "eval", FORK).stdout.splitlines()[0] == "0"


def test_it_is_named_and_counted_and_gone_after_detach(job: Target, probe: Probe) -> None:
    assert rows(probe, job, "SELECT device_tap FROM probe.agents") == [{"device_tap": "on"}]
    (drops,) = rows(probe, job, f"SELECT rows, dropped FROM probe.drops WHERE stream = '{DEVICE}'")
    assert drops["rows"] > 100 and drops["dropped"] == 0
    assert DEVICE in agent_memory.descriptors(job.pid)
    probe(job.pid, "detach")
    until(lambda: not agent_memory.descriptors(job.pid))  # its thread ends a moment after it has said so


def test_a_job_on_the_cpu_has_no_device_stream(start: Start, probe: Probe) -> None:
    job = start("loop.py", "--sleep", "0.02")
    probe("attach", job.pid)
    until_ticked(job.pid)  # then it looks for devices
    assert rows(probe, job, "SELECT device_tap FROM probe.agents") == [{"device_tap": None}]
    assert rows(probe, job, f"SELECT COUNT(*) AS n FROM probe.drops WHERE stream = '{DEVICE}'") == [{"n": 0}]
    done = probe(job.pid, "query", "SELECT COUNT(*) FROM python.torch_trace WHERE duration IS NULL")
    assert "device" not in done.stderr and DEVICE not in agent_memory.descriptors(job.pid)
