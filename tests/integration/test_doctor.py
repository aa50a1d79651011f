"""`probe doctor`: what it says is what attach does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from delivering import as_another_user
from played_nvml import module_text
from terminal import COLUMNS, Terminal
from until import stop

from probe.attach import doctor, refusals
from target import Probe, Start, Target


def test_doctor_succeeds_where_attach_does(start: Start, probe: Probe) -> None:
    job = start("waiting.py", "sleep")
    told = probe("doctor", job.pid).stdout
    assert "You can attach." in told and "NO" not in told
    assert "none yet" in told
    assert not [line for line in _maps(job.pid) if "probe" in line]
    probe("attach", job.pid)
    assert "already there" in probe(job.pid, "doctor").stdout


def test_without_a_pid_doctor_checks_the_machine(probe: Probe) -> None:
    rows = json.loads(probe("doctor", "--format", "json").stdout)
    assert [row["condition"] for row in rows] == ["processor", "kernel", "you", "yama", "ptrace"]
    assert all(row["holds"] and row["pid"] is None for row in rows)


def test_peaks_are_those_of_a_machine_and_not_of_a_process(probe: Probe) -> None:
    refused = probe("doctor", "--peak", os.getpid(), status=2)
    assert "[usage] --peak measures this machine" in refused.stderr and refused.stdout == ""


@pytest.mark.parametrize("kind", ["stopped", "not-python", "no-process"])
def test_doctor_refuses_with_the_message_and_code_of_attach(start: Start, probe: Probe, kind: str) -> None:
    other = subprocess.Popen(["sleep", "100"])
    try:
        pid = {"not-python": other.pid, "no-process": 4_194_305}.get(kind) or start("waiting.py", "sleep").pid
        if kind == "stopped":
            stop(pid)
        attach, told = probe("attach", pid, status=4), probe("doctor", pid, status=4)
    finally:
        other.kill()
        other.wait()
    assert f"[{kind}]" in attach.stderr and told.stderr == attach.stderr
    (line, remedy) = told.stdout.splitlines()[-2:]
    assert line.startswith("NO  ") and f"{line[19:]} {remedy.strip()}" in attach.stderr


def test_doctor_checks_every_rank(start: Start, probe: Probe) -> None:
    job = start("waiting.py", "sleep", ranks=2)
    ranks = {row["rank"] for row in json.loads(probe("doctor", job.pid, "--format", "json").stdout)}
    assert ranks == {None, 0, 1}


def _target(name: str) -> str:
    return os.path.join(os.path.dirname(__file__), "..", "targets", name)


def test_a_seccomp_filter_that_forbids_ptrace_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(tid: int) -> None:
        raise PermissionError

    monkeypatch.setattr(doctor.ptrace, "seize", refused)
    (found,) = (each for each in doctor.of_machine() if not each.holds)
    assert found.name == "ptrace" and found.error is not None and found.error.code == "seccomp"


def test_a_machine_that_forbids_all_tracing_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "yama", lambda: 3)
    (found,) = (each for each in doctor.of_machine() if not each.holds)
    assert found.error is not None and found.error.code == "yama-off"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_another_users_process_is_reported_with_its_owner(start: Start) -> None:
    target = start("waiting.py", "sleep")
    assert as_another_user(lambda: getattr(doctor.of_process(target.pid)[-1].error, "code", "")) == "other-user"


def _maps(pid: int) -> list[str]:
    with open(f"/proc/{pid}/maps") as file:
        return file.readlines()


def test_a_job_can_start_the_agent_itself(probe: Probe) -> None:
    code = "import probe; probe.start(); probe.start(); print('ready', flush=True); input()"
    job = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert job.stdout is not None and job.stdout.readline() == "ready\n"
        assert probe(job.pid, "eval", "--now", "1 + 1").stdout == "2\n"
        assert "already" in probe("attach", job.pid).stdout
        probe(job.pid, "detach")
        assert job.poll() is None
    finally:
        job.communicate("\n")
    assert job.returncode == 0


def devices(probe: Probe, *words: int | str) -> dict[str, str]:
    """What --gpu adds: the rows on which attaching does not depend."""
    rows: list[dict[str, Any]] = json.loads(probe("doctor", "--gpu", "--format", "json", *words).stdout)
    added = [row for row in rows if row["holds"] is None]
    assert not [row for row in added if row["remedy"] or row["code"]]
    return {row["condition"]: row["told"] for row in added}


@pytest.fixture
def job(start: Start) -> Target:
    """With torch, on a CUDA that is played."""
    return start("on_cuda.py")


def test_the_devices_of_a_job_are_read_without_touching_it(job: Target, probe: Probe) -> None:
    torch = pytest.importorskip("torch")
    before = _maps(job.pid)
    told = devices(probe, job.pid)
    assert told["torch"].startswith(f"{torch.__version__}, built ")
    assert told["visible"] == "CUDA_VISIBLE_DEVICES was not set when the process began"
    assert "not known until attached" in told["collectives"] and "the agent says" not in told["collectives"]
    assert not [line for line in _maps(job.pid) if "probe" in line] and len(_maps(job.pid)) == len(before)


def test_once_attached_the_agent_itself_says_what_is_off(job: Target, probe: Probe) -> None:
    probe("attach", "--no-devices", job.pid)
    off = "off: CUDA is in use, which --no-devices leaves alone"
    told = devices(probe, job.pid)
    assert told["device times"] == f"the agent says: {off}" and told["dumps"].endswith(off)


def test_devices_of_a_simulated_driver_are_shown(
    start: Start, probe: Probe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = start("waiting.py", "sleep", env={"CUDA_VISIBLE_DEVICES": "1,0"})
    (tmp_path / "pynvml.py").write_text(f"{module_text('a', 'b')}nvml.computing['b'] = [{job.pid}]\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    told = devices(probe, job.pid)
    assert "NVIDIA 570.86.15" in told["driver"] or os.path.exists("/proc/driver/nvidia/version")
    assert "GPU-a-1234" in told["gpu 0"] and "no contexts" in told["gpu 0"]
    assert f"contexts of pids {job.pid}" in told["gpu 1"]
    assert told["visible"] == "CUDA_VISIBLE_DEVICES=1,0 when the process began"
    assert told["contexts"] == "NVML lists this process on gpu 1" or told["contexts"].startswith("not known: in this")
    assert told["gpu_trace"].startswith("on for the devices that the process sees")


def test_the_exit_status_does_not_depend_on_devices(probe: Probe) -> None:
    assert {"driver", "nvml"} <= set(devices(probe))
    plain = json.loads(probe("doctor", "--format", "json").stdout)
    assert None not in [row["holds"] for row in plain]
    gone = probe("doctor", "--gpu", 4_194_305, status=4)
    assert "[no-process]" in gone.stderr and "devices        not known: there is no such process" in gone.stdout


def test_long_lines_are_wrapped_on_a_terminal_and_whole_elsewhere(job: Target, probe: Probe, tmp_path: Path) -> None:
    terminal = Terminal("doctor", job.pid, "--gpu", state=tmp_path)
    try:
        lines = terminal.wait_for("You can attach").splitlines()
    finally:
        terminal.end()
    assert max(map(len, lines)) <= COLUMNS
    (at,) = (place for place, line in enumerate(lines) if line.startswith("    collectives"))
    assert lines[at + 1].startswith(" " * 19)
    whole = f"{lines[at].rstrip()} {lines[at + 1].strip()}"
    assert whole in probe("doctor", job.pid, "--gpu").stdout
