"""The rule on servers, on planted rows."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest
from planted import Planted

from probe.diagnose.rule import Finding
from probe.diagnose.rules.compute import server_saturated
from probe.diagnose.rules.compute.server_saturated import SERVER_SATURATED
from probe.host.facts import Facts

CALL = "Module._call_impl (torch/nn/modules/module.py:7)"


def found(planted: Planted) -> list[Finding]:
    return list(SERVER_SATURATED.find(planted.watched()))


def serving(idle_s: float, step_ends: str = "call") -> Planted:
    planted = Planted(agents=[Facts(rank=0, step_ends=step_ends)]).steps(100, validation=16, other=4, noise=0)
    planted.plant("probe.agents", [{"pid": 4242, "host": socket.gethostname(), "state": "answers"}])
    loop = ("main (serve.py:9)", "BaseServer.serve_forever (socketserver.py:238)")
    return planted.profile(
        ("validation", 8.0, (*loop, "Handler.predict (serve.py:5)", CALL)),
        ("other", idle_s, (*loop, "_PollLikeSelector.select (selectors.py:415)")),
        ("other", 2.0, (*loop, "_SocketWriter.write (socketserver.py:834)")),
    )


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """How many connections wait in front of the process."""
    return lambda waiting: monkeypatch.setattr(server_saturated, "waiting_connections", lambda pid: waiting)


def test_a_server_without_time_left_is_found_with_its_function_and_queue(queue: Callable[[int], None]) -> None:
    queue(6)
    (told,) = found(serving(0.1))
    assert told.sentence == "Saturated server: it is busy for 99 % of the time, and requests wait."
    assert told.severity == "critical" and told.where == "the model is called in Handler.predict (serve.py:5)"
    assert told.why[1] == "6 connections to be accepted, some 120 ms in a queue; to serve one takes 20 ms"


def test_a_server_that_one_client_asks_again_and_again_is_a_hint(queue: Callable[[int], None]) -> None:
    queue(0)
    (told,) = found(serving(0.1))
    assert told.severity == "hint" and "requests wait" not in told.sentence


def test_a_server_with_time_left_and_a_job_that_trains_are_left_alone() -> None:
    assert not found(serving(6.0))
    assert not found(serving(0.1, step_ends=""))


def under_a_loop(*frames: str, beside: bool) -> Planted:
    """A server with an event loop, whose function is called in the loop, or in a thread beside it."""
    planted = Planted(agents=[Facts(rank=0, step_ends="call")]).steps(100, validation=16, other=4, noise=0)
    planted.plant("probe.agents", [{"pid": 4242, "host": socket.gethostname(), "state": "answers"}])
    if beside:
        loop = ("main (serve.py:9)", "BaseEventLoop._run_once (asyncio/base_events.py:1871)")
        waits = (None, 9.0, (*loop, "EpollSelector.select (selectors.py:468)"))
        planted.profile(waits, thread=2)
    return planted.profile(
        ("validation", 8.0, (*frames, "predict (serve.py:5)", CALL)), ("other", 0.1, (*frames, "encode (serve.py:7)"))
    )


@pytest.mark.parametrize(
    ("frames", "beside"),
    [
        (("Server.run (uvicorn/server.py:67)", "Handle._run (asyncio/events.py:80)"), False),
        (("Thread._bootstrap (threading.py:973)", "WorkerThread.run (anyio/_backends/_asyncio.py:807)"), True),
    ],
    ids=["async def", "def"],
)
def test_of_a_server_with_a_loop_nobody_knows_whether_requests_wait(
    queue: Callable[[int], None], frames: tuple[str, ...], beside: bool
) -> None:
    queue(0)
    (told,) = found(under_a_loop(*frames, beside=beside))
    assert told.severity == "hint" and told.where == "the model is called in predict (serve.py:5)"
    assert told.sentence.endswith("of the time; whether requests wait is not known.")
