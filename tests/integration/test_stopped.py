"""A rank that stands still, or whose GIL is held, is read from its memory into the rows that the wire gave."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest
from until import stop, until

from probe import connect
from probe.host import agent_memory
from probe.host.facts import NO_FACTS
from target import PROBE, Probe, Start, Target, until_ticked

SQL = "SELECT * EXCLUDE (time) FROM python.torch_trace WHERE step <= {last} ORDER BY seq, stage, module, start_ns"
HOLDS = "import ctypes; ctypes.PyDLL(None).sleep(60)"  # PyDLL does not let go of the GIL


@pytest.fixture(scope="module")
def attached(start_once: Start, probe: Probe, tmp_path_factory: pytest.TempPathFactory) -> Target:
    job = start_once("witness.py", str(tmp_path_factory.mktemp("witness") / "state"))
    probe("attach", job.pid)
    probe(job.pid, "set", "sample=1")
    return job


@pytest.fixture
def job(attached: Target) -> Iterator[Target]:
    yield attached
    os.kill(attached.pid, signal.SIGCONT)


def test_commands_that_need_the_agent_report_a_stopped_process_at_once(job: Target, probe: Probe) -> None:
    stop(job.pid)
    assert probe("attach", job.pid).stdout.rstrip().endswith(f"; it is stopped: kill -CONT {job.pid}")
    for words in (("eval", "1"), ("set", "sample=2"), ("detach",)):
        began = time.monotonic()
        done = probe(job.pid, *words, status=8)
        assert time.monotonic() - began < 8  # of the 10 s that a silent rank would be waited for
        assert f"kill -CONT {job.pid}" in done.stderr


@pytest.mark.parametrize("how", ["stopped", "gil"])
def test_a_silent_agents_rows_are_read_from_its_memory(job: Target, probe: Probe, how: str) -> None:
    with connect(str(job.pid)) as connection:
        for _ in range(2):
            until_ticked(job.pid)  # module names lie in the log

        def recorded() -> tuple[int, list[dict[str, Any]]] | None:
            last = connection.query("SELECT MAX(step) AS last FROM python.torch_trace").to_pylist()[0]["last"]
            rows = connection.query(SQL.format(last=last)).to_pylist() if last is not None else []
            return (last, rows) if len(rows) > 500 else None

        last, expected = until(recorded)
    snippet = _stand_still(job, how)
    began = time.monotonic()
    done = probe(job.pid, "query", "--timeout", "30", "--format", "json", SQL.format(last=last))
    assert time.monotonic() - began < 20
    assert json.loads(done.stdout) == expected
    assert "answered 0/1 ranks in " in done.stderr and ", silent: 0; read from memory: rank 0" in done.stderr
    agents = json.loads(probe(job.pid, "query", "--format", "json", "SELECT state, step FROM probe.agents").stdout)
    assert [agent["state"] for agent in agents] == ["silent"] and agents[0]["step"] >= last
    stack = probe(job.pid, "stack", "--timeout", "1")
    assert "MainThread:\n" in stack.stdout and "\n  main (witness.py:" in stack.stdout  # read from outside
    assert stack.stderr.endswith(": its stacks were read from its memory\n")
    assert ("probe-agent:\n  <module> (<eval>:1)" in stack.stdout) == (how == "gil")
    assert f"pid {job.pid}, threads in the kernel:\n" in stack.stdout and f"({job.pid}): " in stack.stdout
    assert ("holds the GIL" in stack.stdout) == (how == "gil")
    if snippet is not None:
        snippet.kill()
        snippet.communicate()


def _stand_still(job: Target, how: str) -> subprocess.Popen[Any] | None:
    if how == "stopped":
        stop(job.pid)
        return None
    snippet = subprocess.Popen(
        [PROBE, str(job.pid), "eval", "--now", HOLDS], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    until(
        lambda: time.monotonic_ns() - (agent_memory.facts(job.pid) or NO_FACTS).monotonic_ns > 3e9
    )  # its agent's last word
    return snippet
