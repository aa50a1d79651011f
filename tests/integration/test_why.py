"""`probe why` on real jobs: the verdict, what it leaves behind, and jobs that do not step."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
from pathlib import Path

import pytest
from terminal import Terminal
from until import until

from target import PROBE, TARGETS, Probe, Start

pytest.importorskip("torch")

SICK = TARGETS / "sick"
SAMPLING = "SELECT steps_of, steps FROM probe.overhead WHERE steps_of = 'sampled'"


def threads(pid: int) -> list[str]:
    """Their names."""
    names = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # it ended
            names.append((task / "comm").read_text().strip())
    return names


@pytest.mark.alone  # it looks at the clock
def test_a_slow_loader_is_the_verdict_and_nothing_stays(start: Start, probe: Probe, tmp_path: Path) -> None:
    job = start(SICK / "loading.py", "input_bound_gnn")
    terminal = Terminal(job.pid, "why", "--seconds", 1, "--leave", state=tmp_path)
    terminal.wait_for("Verdict")
    assert re.search("Watching ━+─* 1 of 1 s", terminal.text) and "\\r" not in terminal.text
    terminal.end()
    told = probe(job.pid, "why", "--seconds", 8, "--json", "--leave", timeout=120)
    found = json.loads(told.stdout)
    assert found["verdict"]["code"] == "input-bound" and found["verdict"]["severity"] == "critical", found
    (first, *_) = found["findings"]
    assert 0.4 < first["share"] < 1 and first["seconds_per_step"] == pytest.approx(
        first["share"] * found["step_s"], rel=0.2
    )
    assert first["try"].startswith(f'probe {job.pid} eval "') and "num_workers" in first["try"] and first["where"]
    assert found["steps"] >= 20 and len(found["checked"]) >= 15 and 8 <= found["seconds"] < 12
    asked = subprocess.Popen([PROBE, str(job.pid), "why", "--leave"], stderr=subprocess.PIPE, text=True)
    assert asked.stderr is not None and any("Watching" in line for line in asked.stderr)
    asked.send_signal(signal.SIGINT)
    asked.communicate(timeout=60)
    assert asked.returncode == 130
    until(lambda: "probe-agent" not in threads(job.pid))  # it ends a moment after it has said so
    until(lambda: "not-attached" in probe(job.pid, "query", "SELECT 1", status=None).stderr)


def test_a_server_without_requests_is_idle_and_fail_on_a_warning_passes(start: Start, probe: Probe) -> None:
    job = start(SICK / "machine.py", "idle_server")
    told = probe(job.pid, "why", "--json", "--fail-on", "warning", timeout=120)
    assert json.loads(told.stdout)["verdict"]["code"] == "idle"


def test_options_that_make_no_sense_are_refused(probe: Probe) -> None:
    assert "--since-change" in probe(1, "why", "--at", 5, status=2).stderr
    assert "input-bound" in probe("why", "--sql", "input-bond", status=2).stderr
    assert "FROM python.dataloader_trace" in probe("why", "--sql", "input-bound").stdout
