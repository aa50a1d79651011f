"""All traces of a job listed or ended: a rank that has not answered is told, and is no success."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fake_agent import FakeAgent, Key

import probe
from probe import protocol as wire
from probe.cli.entry import run
from probe.client import traces
from probe.connection import Connection
from probe.errors import SilentError

ONE = {"id": 1, "function": "app:predict", "file": "app.py", "line": 3, "calls": 7, "start_ns": 1, "end_ns": 0,
       "why_off": ""}  # fmt: skip


@pytest.fixture
def job(
    agent: Callable[..., FakeAgent], connected: Callable[..., Connection], monkeypatch: pytest.MonkeyPatch
) -> Connection:
    """Two ranks that trace a function; rank 1 answers no request about traces.  The command finds it."""
    made = [agent(rank, world_size=2) for rank in (0, 1)]

    def answer(key: Key, request: dict[str, Any], payload: Any) -> None:
        made[0].server.reply(key, wire.TRACED, traces=[ONE], names=[])

    made[0].server.handlers[wire.TRACE] = answer
    made[1].server.handlers[wire.TRACE] = lambda *request: None
    connection = connected(*made, timeout=0.4)
    monkeypatch.setattr(Connection, "restore_servers", lambda self: None)
    monkeypatch.setattr(probe, "connect", lambda *_, **__: connection)
    return connection


@pytest.mark.parametrize("call", ["traces", "stop_traces"])
def test_a_rank_that_does_not_answer_is_unreached(job: Connection, call: str) -> None:
    (traced,) = getattr(job, call)()
    assert (traced.rank, traced.function) == (0, "app:predict")
    assert [each.rank for each in job.unreached] == [1]
    assert "Rank 1" in job.notes[0] and "does not answer" in job.notes[0]


@pytest.mark.parametrize("option", ["", " --stop"])
@pytest.mark.parametrize("line", ["4242 trace", "trace 4242"])
def test_the_command_then_ends_with_8(
    job: Connection, line: str, option: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(f"{line}{option} --format csv".split()) == 8
    told = capfd.readouterr()
    assert told.out.splitlines()[1:] == ["0,app:predict,7,app.py,3"]
    assert "Rank 1" in told.err and f"1 of the ranks did not answer. Run trace{option} again later." in told.err


def test_a_job_of_which_no_rank_answers_is_an_error(agent: Callable[..., FakeAgent], connected: Any) -> None:
    one = agent()
    one.server.handlers[wire.TRACE] = lambda *request: None
    with pytest.raises(SilentError, match="does not answer"):
        connected(one, timeout=0.2).stop_traces()


@pytest.fixture
def losing(agent: Callable[..., FakeAgent], connected: Callable[..., Connection]) -> tuple[Connection, list[Any]]:
    """Two ranks that begin a trace, after which rank 1 is mute; what rank 0 is asked of its own."""
    made, asked = [agent(rank, world_size=2) for rank in (0, 1)], list[Any]()

    def answer(key: Key, request: dict[str, Any], payload: Any) -> None:
        asked.append(request["to"] if "ids" in request else "begin")
        made[0].server.reply(key, wire.TRACED, traces=[ONE], names=[])

    def begin(key: Key, request: dict[str, Any], payload: Any) -> None:
        if "function" in request:
            made[1].server.reply(key, wire.TRACED, traces=[ONE], names=[])

    made[0].server.handlers[wire.TRACE], made[1].server.handlers[wire.TRACE] = answer, begin
    return connected(*made, timeout=1.5), asked


def test_a_rank_that_is_lost_amid_a_trace_is_told(losing: tuple[Connection, list[Any]]) -> None:
    job, _ = losing
    assert [each.rank for each in job.trace("app:predict", 0.1)] == [0]
    (lost,) = job.unreached
    assert lost.rank == 1 and "does not answer" in lost.why


def test_a_rank_that_answers_hears_that_somebody_waits_while_another_is_mute(
    losing: tuple[Connection, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traces, "_PATIENCE_S", 0.1)
    job, asked = losing
    job.trace("app:predict", 1.5)
    assert asked[0] == "begin" and asked[-1] == "stop" and asked.count(None) >= 2
