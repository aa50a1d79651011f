"""Ranks on another host: their stacks and profiles are read there, by processes without a port."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from forked import ForkServer
from two_hosts import Host, two_hosts
from until import stop, until

from probe import keys
from probe.host import agent_memory
from probe.host.facts import NO_FACTS
from target import PYTHON, Target, links

JOB = """
import ctypes, signal, threading, time
def spin():
    total, end = 0, time.perf_counter() + 0.02  # as long on a fast machine as on a slow one
    while time.perf_counter() < end:
        total += 1
def sleeps():
    while True:
        time.sleep(60)
threading.Thread(target=sleeps, name="sleeper", daemon=True).start()
signal.signal(signal.SIGUSR1, lambda *_: sum(range(10**13)))
print("ready", flush=True)
while True:
    spin()
    time.sleep(0.01)
"""
HOLDS = "import ctypes; ctypes.PyDLL(None).sleep(60)"  # PyDLL does not let go of the GIL


class Job:
    """One process on the first host, asked from the second, which does not see it."""

    def __init__(self, target: Target, here: Host, there: Host, folder: Path) -> None:
        self.target, self.pid = target, target.pid
        self._there, self._folder = there, folder
        facts = agent_memory.facts(target.pid) or NO_FACTS
        self._server, port = str(facts.server), str(facts.tcp).rpartition(":")[2]
        self.endpoint = f"tcp://{here.address}:{port}"

    def ask(self, verb: str, *words: str) -> Any:
        return self._there.probe(self.endpoint, verb, "--key", self._folder / "reader.key", *words)

    def start(self, verb: str, *words: str) -> Any:
        return self._there.start(self.endpoint, verb, "--key", self._folder / "control.key", *words)

    def processes(self, name: str) -> list[int]:
        """Of this name, that its server has started, or itself."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
                if self._server in words and Path(f"/proc/{pid}/comm").read_text().strip() == name:
                    found.append(int(pid))
            except OSError:
                continue
        return found

    def rows(self, sql: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.ask("query", "--format", "json", sql).stdout)
        return found


@pytest.fixture(scope="module")
def jobs(
    fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], AbstractContextManager[Job]]]:
    """Each is attached, on the first of two hosts."""
    folder = tmp_path_factory.mktemp("job")
    keys.create(str(folder / "control.key"))
    keys.share(str(folder / "control.key"), str(folder / "reader.key"))
    (folder / "job.py").write_text(JOB)
    with two_hosts(fork_server) as (here, there):

        @contextmanager
        def make() -> Iterator[Job]:
            target = Target((*here.inside, PYTHON, str(folder / "job.py")), folder / "job.txt", {}, here.server)
            try:
                target.wait_for("ready")
                here.attach("--listen", here.address, "--key", folder / "control.key", target.pid)
                yield Job(target, here, there, folder)
            finally:
                target.end()

        yield make


@pytest.fixture(scope="module")
def job(jobs: Callable[[], AbstractContextManager[Job]]) -> Iterator[Job]:
    with jobs() as made:
        yield made


def network_sockets(pid: int) -> set[str]:
    """The inodes of its sockets that a network could reach."""
    held = set()
    for link in links(pid):
        match = re.fullmatch(r"socket:\[(\d+)\]", link)
        held |= {match[1]} if match else set()
    reachable = set()
    for kind in ("tcp", "tcp6", "udp", "udp6", "raw"):
        path = Path(f"/proc/{pid}/net/{kind}")
        reachable |= {line.split()[9] for line in path.read_text().splitlines()[1:]} if path.exists() else set()
    return held & reachable


def listening(pid: int) -> int:
    """How many of its sockets are at a path, as those of servers are."""
    lines = Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]
    named = {line.split()[6] for line in lines if len(line.split()) > 7}
    return sum(link.removeprefix("socket:[").rstrip("]") in named for link in links(pid))


def test_a_reader_gets_the_stacks_by_a_process_that_has_no_port(job: Job) -> None:
    told = job.ask("stack").stdout
    assert "job.py" in told and "sleeper:" in told and "probe-agent" not in told
    rows = job.rows("SELECT thread_name, holds_gil, function FROM python.stack WHERE depth = 0")
    assert {"sleeper", "MainThread"} <= {row["thread_name"] for row in rows}
    assert all(row["holds_gil"] is not None for row in rows)
    (reader,) = job.processes("probe-stacks")
    assert not network_sockets(reader) and not listening(reader)
    config = json.loads(Path(f"/proc/{reader}/fd/4").read_text())
    assert config["key"] is None
    assert [network_sockets(pid) != set() for pid in job.processes("probe-server")] == [
        True
    ]  # so the check can see them


def test_a_rank_that_is_stopped_has_stacks_and_a_verdict_names_where(job: Job) -> None:
    stop(job.pid)
    try:
        done = job.ask("stack")
        assert "job.py" in done.stdout and "does not answer: its stacks were read" in done.stderr
        assert re.search(r"does not answer.*, in .*job\.py", job.ask("hang").stdout)
    finally:
        os.kill(job.pid, signal.SIGCONT)


PROFILE = """SELECT COUNT(*) AS n, SUM(seconds) AS seconds FROM python.profile
WHERE is_main AND array_to_string(stack, ' ') LIKE '%spin (%'"""


def test_a_profile_is_taken_there_by_another(job: Job) -> None:
    running = job.start("profile", "--seconds", "3", "--format", "csv")
    (profiler,) = until(lambda: job.processes("probe-profiler"), 30)
    assert not network_sockets(profiler) and not listening(profiler)
    told, err = running.communicate(timeout=60)
    assert running.returncode == 0, err
    assert "spin" in told and re.search(r"Looked at rank 0 for 3\.\d s", err)
    (found,) = job.rows(PROFILE)
    assert found["n"] > 50 and found["seconds"] > 0.5
    assert not job.processes("probe-profiler")


def test_a_command_that_ends_takes_the_profiler_along(job: Job) -> None:
    running = job.start("profile", "--seconds", "60")
    until(lambda: job.processes("probe-profiler"), 30)
    (command,) = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()  # unshare's
    os.kill(int(command), signal.SIGINT)
    _, err = running.communicate(timeout=30)
    assert "[interrupted]" in err
    until(lambda: not job.processes("probe-profiler"), 30)


def test_a_rank_whose_gil_is_held_has_stacks(job: Job) -> None:
    """The last test: nothing gives it back."""
    held = job.start("eval", "--now", "--timeout", "60", HOLDS)
    try:
        until(lambda: "<eval>" in job.ask("stack").stdout, 30)
    finally:
        held.kill()
        held.communicate()


def test_a_rank_that_computes_within_one_call_is_not_blocked_from_elsewhere_either(
    jobs: Callable[[], AbstractContextManager[Job]],
) -> None:
    """Its stack does not move, and it holds the GIL: what its process has used tells."""
    with jobs() as job:
        until(lambda: "spin" in job.ask("stack").stdout)  # its agent has found out how frames lie in memory
        os.kill(job.pid, signal.SIGUSR1)
        until(lambda: "<lambda>" in job.ask("stack").stdout)
        told = job.ask("hang").stdout
    assert "is computing: it may hold the GIL in C, in <lambda> (job.py" in told
    assert re.search(r"works for \d+\.\d ms at a time, \d+ ?% of a core", told), told
