"""`probe doctor`: what it says is what attach does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from delivering import as_another_user

from probe.attach import doctor, refusals
from target import Probe, Start


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


@pytest.mark.parametrize("kind", ["stopped", "not-python", "no-process"])
def test_doctor_refuses_with_the_message_and_code_of_attach(start: Start, probe: Probe, kind: str) -> None:
    other = subprocess.Popen(["sleep", "100"])
    try:
        pid = {"not-python": other.pid, "no-process": 4_194_305}.get(kind) or start("waiting.py", "sleep").pid
        if kind == "stopped":
            os.kill(pid, signal.SIGSTOP)
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
