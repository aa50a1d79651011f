"""Traces and profiles of which the rings hold the last rows only: what is told of those, and what of all."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from fake_agent import FakeAgent

import probe
from probe.agent.storage.rows import Stream
from probe.cli.entry import run
from probe.client.traces import RankTrace
from probe.connection import Connection
from probe.profile.launch import RankProfile
from probe.streams import CALLS, PROFILE_NODES, PROFILE_SAMPLES, STREAMS

S, MS = 1_000_000_000, 1_000_000
SECONDS = 40
Captured = pytest.CaptureFixture[str]


class Job:
    """A rank with small rings for calls and samples, to which the command connects; begun: when it is looked at."""

    def __init__(self, rank: FakeAgent, connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rank, self.begun = rank, rank.facts["attached_ns"] + S
        for name in (CALLS, PROFILE_SAMPLES, PROFILE_NODES):
            rank.streams[name] = Stream(name, STREAMS[name], 1)
            rank.facts["streams"][name] = {"slots": list(STREAMS[name]), "chunks": rank.streams[name].chunks}
        self.capacity = rank.streams[CALLS].capacity
        monkeypatch.setattr(Connection, "restore_servers", lambda self: None)
        monkeypatch.setattr(probe, "connect", lambda *_, **__: connection)
        self._replace, self._connection = monkeypatch.setattr, connection

    def calls(self, count: int, function: str = "app:predict", before: int = 0) -> None:
        """One a millisecond, each of half a millisecond, since it is traced; before: so many milliseconds earlier."""
        name = self.rank.log.string(function)
        for start in range(self.begun - before * MS, self.begun + (count - before) * MS, MS):
            self.rank.streams[CALLS].append(start, start + MS // 2, name, -1, -1, 7, 0)

    def trace(self, begun: int) -> None:
        """What the command shows of app:predict, of which so many calls have begun."""
        told = RankTrace(0, 1, "app:predict", "app.py", 3, begun, self.begun, self.begun + SECONDS * S, "")
        self._replace(self._connection, "trace", lambda *_, **__: [told])
        assert run(["4242", "trace", "app:predict", "--json"]) == 0

    def profile(self, samples: int) -> None:
        node = self.rank.streams[PROFILE_NODES]
        node.append(0, self.rank.log.string("train\0/home/me/train.py"), 7)
        for at in range(self.begun, self.begun + samples * MS, MS):
            self.rank.streams[PROFILE_SAMPLES].append(at, MS, 1, 7, 7, 0)
        told = RankProfile(0, samples, samples, 0, self.begun, self.begun + SECONDS * S, 0.1)
        self._replace(self._connection, "profile", lambda *_, **__: [told])
        assert run(["4242", "profile", "--json"]) == 0


@pytest.fixture
def job(agent: Callable[..., FakeAgent], connected: Callable[..., Connection], monkeypatch: pytest.MonkeyPatch) -> Job:
    rank = agent()
    rank.name_modules()
    return Job(rank, connected(rank), monkeypatch)


def test_calls_that_were_overwritten_count_and_it_is_said_that_they_are_gone(job: Job, capfd: Captured) -> None:
    job.calls(40_000)
    job.trace(40_003)
    out, err = capfd.readouterr()
    (row,) = json.loads(out)
    assert (row["calls"], row["calls_per_s"]) == (40_003, 40_003 / SECONDS)
    assert f"Only the last {job.capacity:,} of 40,003 calls of rank 0 are left: " in err and err.count("Only") == 1


def test_calls_of_which_other_functions_have_left_none_were_made(job: Job, capfd: Captured) -> None:
    job.calls(10)
    job.calls(job.capacity, "app:other")
    job.trace(10)
    out, err = capfd.readouterr()
    assert json.loads(out) == [] and "Only the last 0 of 10 calls" in err and "has ended no call" not in err


def test_a_call_that_still_runs_is_not_taken_for_one_that_was_overwritten(job: Job, capfd: Captured) -> None:
    job.calls(job.capacity + 1000, before=job.capacity)
    job.trace(1003)
    out, err = capfd.readouterr()
    (row,) = json.loads(out)
    assert (row["calls"], row["calls_per_s"]) == (1000, 1000 / SECONDS) and "Only" not in err


@pytest.mark.parametrize("more", [0, 1000])
def test_a_profile_says_of_how_many_samples_its_times_are(more: int, job: Job, capfd: Captured) -> None:
    capacity = job.rank.streams[PROFILE_SAMPLES].capacity
    job.profile(capacity + more)
    said = f"Only the last {capacity:,} of {capacity + more:,} samples of rank 0 are left: the times are of these"
    assert (said in capfd.readouterr().err) == bool(more)
