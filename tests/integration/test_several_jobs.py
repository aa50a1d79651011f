"""A pid that stands for more than one job: none of them is taken without a word."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from terminal import Terminal

from probe.host import agent_memory
from target import TARGETS, Probe, Start, descendants

TWO = 'for port in 1 2; do RANK=0 WORLD_SIZE=1 MASTER_PORT=$port "$0" "$1" & done; wait'


@pytest.fixture
def shell() -> Iterator[int]:
    """The pid of a shell with two jobs of one rank each."""
    process = subprocess.Popen(
        ["bash", "-c", TWO, sys.executable, str(TARGETS / "plain.py")], stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    said = ""
    while said.count("ready") < 2 or not said.endswith("\n"):  # two write at once, in pieces
        said += process.stdout.read(1)
    yield process.pid
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def attached_below(pid: int) -> int:
    return sum(agent_memory.facts(each) is not None for each in descendants(pid))


def test_attach_needs_all_for_a_pid_with_several_jobs(shell: int, probe: Probe) -> None:
    for follow in ((), ("--follow",)):
        refused = probe("attach", *follow, shell, status=3)
        assert f"[several-jobs] Below pid {shell} are 2 jobs: " in refused.stderr and "or --all" in refused.stderr
        assert attached_below(shell) == 0
    probe("attach", "--all", shell)
    assert attached_below(shell) == 2
    for pid in descendants(shell):
        probe(pid, "detach")


@pytest.mark.parametrize(("answer", "attached"), [("n", 0), ("y", 2)])
def test_attach_asks_on_a_terminal(shell: int, probe: Probe, tmp_path: Path, answer: str, attached: int) -> None:
    terminal = Terminal("attach", shell, state=tmp_path)
    terminal.wait_for(r"2 jobs: .*Attach to all of them\? \[y/N\]")
    terminal.press(f"{answer}\r")
    assert terminal.wait() == (0 if attached else 3)
    assert attached_below(shell) == attached
    terminal.end()


def test_a_job_of_several_ranks_is_one(start: Start, probe: Probe) -> None:
    probe("attach", start("loop.py", "--sleep", "0.02", ranks=2).pid)
