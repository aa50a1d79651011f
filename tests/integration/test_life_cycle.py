"""What a process does in its life goes as it would without an agent inside: forks, exec, signals, its end."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from probe import connect
from probe.attach import attach
from probe.errors import SilentError
from target import PYTHON, TARGETS, Probe, Start, Target

KINDS = (
    "fork", "spawn", "execv", "exit_with_handlers", "exit_beside_daemons", "exit_by_an_exception_while_threads_go_on",
    "faults", "handlers", "subinterpreters",
)  # fmt: skip


def outcome(kind: str, folder: Path, meanwhile: Callable[[int], object] = lambda pid: None) -> tuple[int, str]:
    """How the target ends, and what it printed but for addresses and names of modules."""
    folder.mkdir()
    target = Target((PYTHON, str(TARGETS / "living.py"), kind, str(folder / "go")), folder / "output", {})
    try:
        target.wait_for("ready")
        meanwhile(target.pid)
        (folder / "go").touch()
        status = target.process.wait(30)
        return status, re.sub(r"0x[0-9a-f]+|\nExtension modules.*\n", "", target.output)
    finally:
        target.end()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[int, str]]:
    """The outcome of a kind without anything of ours."""
    return cache(lambda kind: outcome(kind, tmp_path_factory.mktemp("alone") / kind))


@pytest.mark.parametrize("kind", KINDS)
def test_exec_works_with_an_agent_inside(kind: str, alone: Callable[[str], tuple[int, str]], tmp_path: Path) -> None:
    assert outcome(kind, tmp_path / "with", attach) == alone(kind)
    assert alone(kind)[1].startswith("ready\n") and "Error" not in alone(kind)[1]


@pytest.mark.parametrize("kind", KINDS)
def test_exec_works_after_a_detach(
    kind: str, alone: Callable[[str], tuple[int, str]], tmp_path: Path, probe: Probe
) -> None:
    def visit(pid: int) -> None:
        for _ in range(3):
            attach(pid)
            probe(pid, "detach")

    assert outcome(kind, tmp_path / "with", visit) == alone(kind)


def test_the_program_after_an_exec_can_be_attached_to(tmp_path: Path, probe: Probe) -> None:
    target = Target((PYTHON, str(TARGETS / "living.py"), "into_plain", str(tmp_path / "go")), tmp_path / "output", {})
    try:
        target.wait_for("ready")
        assert not attach(target.pid).already
        (tmp_path / "go").touch()
        target.wait_for("ready", times=2)
        assert not attach(target.pid).already
        assert probe(target.pid, "eval", "--now", "os.getpid()").stdout == f"{target.pid}\n"
        probe(target.pid, "detach")
    finally:
        target.end()


def test_a_connection_that_outlives_a_detach_says_so_at_once(start: Start, probe: Probe) -> None:
    job = start("loop.py", "--sleep", "0.02")
    attach(job.pid)
    with connect(str(job.pid), timeout=30) as connection:
        connection.query("SELECT 1")
        probe(job.pid, "detach")
        began = time.monotonic()
        with pytest.raises(SilentError, match=rf"Rank 0 \(pid {job.pid}\) was detached \(connect again"):
            connection.query("SELECT 1")
        assert time.monotonic() - began < 10
    attach(job.pid)
    with connect(str(job.pid), timeout=30) as connection:
        probe(job.pid, "detach")
        attach(job.pid)
        with pytest.raises(SilentError, match=r"was detached \(connect again once it is attached\)"):
            connection.query("SELECT 1")


@pytest.mark.parametrize("agent", ["0", "1"])
def test_ranks_end_in_order_with_an_operation_in_flight_and_no_thread_of_ours(agent: str, tmp_path: Path) -> None:
    words = (PYTHON, str(TARGETS / "unwaited.py"))
    ranks = [
        Target((*words, str(rank), str(tmp_path / "store"), agent), tmp_path / f"output-{rank}", {}) for rank in (0, 1)
    ]
    try:
        assert [rank.process.wait(60) for rank in ranks] == [0, 0]
        assert all("python" in rank.output and "probe" not in rank.output for rank in ranks)
    finally:
        for rank in ranks:
            rank.end()
