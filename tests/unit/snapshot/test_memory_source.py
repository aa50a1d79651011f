"""An agent read from outside: who is attached, and the rows of a process that does not run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from fake_agent import FakeAgent
from until import stop

from probe import connect
from probe.client import endpoints
from probe.errors import EndpointError
from probe.host import agent_memory
from probe.host.processes import descendants
from probe.query.database import Database
from probe.snapshot.memory_source import MemorySource, RingReader
from probe.snapshot.snapshot import Snapshot
from probe.streams import MARKS, SPANS, STEPS
from probe.tables import TABLES

CHILD = """
import sys
from pathlib import Path
from fake_agent import FakeAgent
agent = FakeAgent(Path(sys.argv[1]), rank=int(sys.argv[2]), world_size=int(sys.argv[3]))
agent.name_modules()
agent.train(3000, group_seq=0)
agent.publish()
sys.stdout.write("ready\\n")
sys.stdout.flush()
sys.stdin.read()
agent.close()
"""
PARENT = """
import subprocess, sys
children = [subprocess.Popen([sys.executable, "-c", sys.argv[2], sys.argv[1], str(rank), "2"]) for rank in range(2)]
for child in children:
    child.wait()
"""


@pytest.fixture
def child(short_folder: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts processes with agents; they end with their standard input."""
    made: list[subprocess.Popen[str]] = []

    def make(*words: str, ready: int = 1) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        command = [sys.executable, "-c", words[0], str(short_folder), *words[1:]]
        pipe = subprocess.PIPE
        made.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment))
        for _ in range(ready):
            assert made[-1].stdout.readline() == "ready\n"
        return made[-1]

    yield make
    for each in made:
        if each.poll() is None:
            os.kill(each.pid, signal.SIGCONT)
            each.stdin.close()
            each.wait(10)
        each.stdout.close()


@pytest.fixture
def one(child: Callable[..., subprocess.Popen[str]]) -> int:
    return child(CHILD, "0", "1").pid


@pytest.fixture
def job(child: Callable[..., subprocess.Popen[str]]) -> int:
    return child(PARENT, CHILD, ready=2).pid


def test_a_stopped_process_gives_the_same_rows_as_the_wire(one: int) -> None:
    sql = "SELECT * EXCLUDE (time) FROM python.torch_trace ORDER BY ALL"
    with connect(str(one)) as connection:
        expected = connection.query(sql, open_steps=True).table
    stop(one)
    job = Snapshot([MemorySource(one)], open_steps=True)
    query = Database(TABLES)
    assert query.run(sql, job).equals(expected)
    query.close()
    assert expected.num_rows > 10_000


def test_what_is_read_beside_a_process_that_runs_is_what_it_would_send(one: int) -> None:
    sql = "SELECT * EXCLUDE (time) FROM python.torch_trace WHERE step < 100 ORDER BY ALL"
    with connect(str(one)) as connection:
        beside = connection.query(sql).table
        assert {scan.stream: scan.is_read for scan in connection.account.scans} == dict.fromkeys(
            ("steps", "spans", "marks"), True
        )
    with pytest.MonkeyPatch.context() as patch, connect(str(one)) as connection:
        patch.setattr(RingReader, "of", lambda *_: None)
        assert connection.query(sql).table.equals(beside) and beside.num_rows == 495
        assert not any(scan.is_read for scan in connection.account.scans)


def test_reading_does_not_make_the_targets_memory_grow(one: int) -> None:
    before = [os.stat(path).st_blocks for path in agent_memory.descriptors(one).values()]
    job = Snapshot([MemorySource(one)])
    assert all(len(job.ranks[0].rows(stream)) for stream in (SPANS, MARKS, STEPS))
    assert [os.stat(path).st_blocks for path in agent_memory.descriptors(one).values()] == before


def test_after_a_lap_of_the_ring_the_last_rows_are_there(agent: Callable[..., FakeAgent]) -> None:
    mine = agent()
    capacity = mine.streams[SPANS].capacity
    for at in range(capacity + 100):
        mine.span(at, at + 1)
    rows = Snapshot([MemorySource(os.getpid())]).ranks[0].rows(SPANS)
    assert np.array_equal(rows["seq"], np.arange(101, capacity + 101))


def test_steps_of_which_rows_were_overwritten_are_not_shown(agent: Callable[..., FakeAgent]) -> None:
    mine = agent()
    mine.train(mine.streams[MARKS].capacity, unit=1000)
    job = Snapshot([MemorySource(os.getpid())])
    query = Database(TABLES)
    (row,) = query.run(
        "SELECT min(n) low, max(n) high FROM (SELECT count(*) n FROM python.torch_trace GROUP BY step)",
        job,
    ).to_pylist()
    query.close()
    assert row == {"low": 5, "high": 5}


def test_the_pid_of_a_process_is_its_endpoint(one: int) -> None:
    resolved = endpoints.resolve(str(one))
    assert [(address.pid, address.facts.rank) for address in resolved.addresses] == [(one, 0)]


def test_the_pid_of_the_launcher_stands_for_all_its_ranks(job: int) -> None:
    resolved = endpoints.resolve(str(job))
    assert [address.facts.rank for address in resolved.addresses] == [0, 1]
    with connect(str(job)) as connection:
        got = connection.query("SELECT rank, pid FROM probe.agents ORDER BY rank").to_pylist()
    assert got == [{"rank": rank, "pid": address.pid} for rank, address in enumerate(resolved.addresses)]


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what this process started is there."""
    everyone = agent_memory.attached

    def ours(skipped: list[str] | None = None) -> Iterator[tuple[int, agent_memory.Facts]]:
        mine = descendants(os.getpid())
        return (one for one in everyone(skipped) if one[0] in mine)

    monkeypatch.setattr(agent_memory, "attached", ours)


@pytest.mark.usefixtures("alone")
def test_without_an_endpoint_the_only_job_is_meant(job: int) -> None:
    assert endpoints.resolve(None).endpoint == str(job)


@pytest.mark.usefixtures("alone")
def test_several_jobs_are_listed(job: int, one: int) -> None:
    with pytest.raises(EndpointError, match=f"2 jobs are attached: .*{min(job, one)}") as caught:
        endpoints.resolve(None)
    assert caught.value.code == "several-jobs"


OWN = "OWN"  # stands for this process's pid, which no test may be called by


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("banana", "endpoint", "'banana' is no endpoint"),
        ("0", "endpoint", "'0' is no endpoint"),
        ("2147483000", "endpoint", "There is no process 2147483000"),
        (OWN, "not-attached", "No agent in pid OWN. Run: probe attach OWN"),
    ],
)
def test_endpoints_that_lead_nowhere(text: str, code: str, says: str) -> None:
    text, says = (word.replace(OWN, str(os.getpid())) for word in (text, says))
    with pytest.raises(EndpointError) as caught:
        endpoints.resolve(text)
    assert caught.value.code == code and says in str(caught.value)


def test_a_target_that_dies_in_the_middle_is_told_as_gone(child: Callable[..., subprocess.Popen[str]]) -> None:
    process = child(CHILD, "0", "1")
    with connect(str(process.pid)) as connection:
        process.stdin.close()
        process.wait(10)
        with pytest.raises(Exception, match="ended") as caught:
            connection.query("SELECT 1")
        assert caught.value.code == "gone"
