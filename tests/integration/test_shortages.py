"""A job that has run out of descriptors, or of room for temporary files: every verb, and it lives.

SHORTAGES says how often each verb is tried.
"""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from until import until

from target import Probe, Start, Target, links, until_ticked

pytestmark = pytest.mark.long

LIMIT, HIGHER = 64, 1024  # of open files
ROUNDS = int(os.environ.get("SHORTAGES", "3"))
NO_ROOM = "has no room for a connection: Too many open files. Raise the job's limit: prlimit --nofile=4096"
COUNT = "SELECT COUNT(*) > 0 AS some FROM python.step_trace"


TAKE_ALL = """
import os, threading, time

os.taken = []

def take():
    while not os.path.exists({full!r}):
        try:
            os.taken.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            time.sleep(0.02)

threading.Thread(target=take, daemon=True).start()
"""
GIVE_BACK = """
import os

for descriptor in os.taken:
    os.close(descriptor)
"""


def connections(pid: int) -> int:
    """Of clients: the agent's own socket listens."""
    return sum(link.startswith("socket:") for link in links(pid)) - 1


@pytest.fixture(scope="module")
def job(start_once: Start, probe: Probe) -> Target:
    made = start_once("loop.py", "--sleep", "0.05")
    probe("attach", made.pid)
    return made


@pytest.fixture
def full(job: Target, probe: Probe, tmp_path: Path) -> Iterator[Target]:
    """A job with an agent, and without a descriptor left but the one that the agent keeps for this."""
    until_ticked(job.pid)  # the agent has it again
    threads = len(os.listdir(f"/proc/{job.pid}/task"))
    below = [f"/proc/{job.pid}/fd/{number}" for number in range(LIMIT)]
    resource.prlimit(job.pid, resource.RLIMIT_NOFILE, (LIMIT, HIGHER))
    probe(job.pid, "eval", "--now", TAKE_ALL.format(full=str(tmp_path / "full")))
    until(lambda: all(map(os.path.lexists, below)) and not connections(job.pid))
    (tmp_path / "full").touch()
    until(lambda: len(os.listdir(f"/proc/{job.pid}/task")) == threads)
    yield job
    resource.prlimit(job.pid, resource.RLIMIT_NOFILE, (HIGHER, HIGHER))
    until(lambda: probe(job.pid, "eval", "--now", GIVE_BACK, status=None).returncode == 0, every_s=0.5)


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("eval", "--now", "1"), 7), (("set", "sample=1"), 7), (("stack",), 0), (("detach",), 8),
        (("query", "--format", "csv", COUNT), 0), (("hang",), 0),
    ],
    ids=lambda each: each[0] if isinstance(each, tuple) else "",
)  # fmt: skip
def test_a_job_without_descriptors_outlives_every_verb(
    full: Target, probe: Probe, words: tuple[str, ...], status: int
) -> None:
    for _ in range(ROUNDS):
        done = probe(full.pid, *words, status=None)
        assert full.alive
        assert done.returncode == status and ("no room" in done.stderr or status == 0), done.stderr + done.stdout
        if words[0] == "query":  # out of its memory
            assert done.stdout == "some\ntrue\n"
    resource.prlimit(full.pid, resource.RLIMIT_NOFILE, (HIGHER, HIGHER))
    until(lambda: probe(full.pid, "eval", "--now", "6*7", status=None).stdout == "42\n")


def test_a_job_without_descriptors_says_how_to_raise_its_limit(full: Target, probe: Probe) -> None:
    said = probe(full.pid, "eval", "--now", "1", status=7).stderr
    assert f"[no-room] Rank 0 (pid {full.pid}) {NO_ROOM}" in said


def test_a_job_whose_temporary_folder_is_full_is_attached_to_and_queried(
    start: Start, probe: Probe, tmp_path: Path
) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if (
        os.geteuid() != 0
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k,nr_inodes=2", "tmpfs", small]).returncode
    ):
        pytest.skip("only root can make a small file system")
    try:
        (small / "all").touch()
        job = start("loop.py", "--sleep", "0.05", env={"TMPDIR": str(small)})
        for _ in range(ROUNDS):
            probe("attach", job.pid)
            for words in (("query", COUNT), ("eval", "--now", "1"), ("hang",), ("detach",)):
                probe(job.pid, *words)
        assert job.alive
    finally:
        job.end()
        subprocess.run(["umount", small], check=True)
