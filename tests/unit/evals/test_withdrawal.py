"""An eval that is given up: no rank is left in front of an operation, whatever comes in the midst of the withdrawal."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from fake_agent import FakeAgent, Key, is_ready, run_snippet
from until import until

from probe import protocol as wire
from probe.cli.session import cancelled_by_signals
from probe.client.client import Client
from probe.connection import Connection
from probe.errors import Interrupted, SilentError
from probe.evals import attempt

Connect = Callable[..., Connection]


@pytest.fixture
def ranks(agent: Callable[..., FakeAgent]) -> list[FakeAgent]:
    """Two ranks that step.  The snippet stands in front of a barrier on rank 0, and on rank 1 once it is given up."""
    made = [agent(rank, world_size=2, distributed=True, step_ns=10_000_000) for rank in (0, 1)]
    for one in made:
        for step in range(5):
            one.boundary(0, step)
        one.facts["last_step_ns"] = time.monotonic_ns()
        one.on_pass = ends
    made[0].on_run = lambda agent, key, count: wants(agent, key)
    made[1].on_run = lambda agent, key, count: threading.Timer(0.8, wants, [agent, key]).start()
    return made


def wants(agent: FakeAgent, key: Key) -> None:
    taking_part = {"group": "0", "ranks": [0, 1], "peer": None, "tag": None, "inside": False, "ending": False}
    agent.server.post(key, wire.OUT, stream="stdout", text="at the barrier")
    agent.server.post(key, wire.WANTS, number=1, operation="barrier", **taking_part)


def ends(agent: FakeAgent, key: Key, request: dict[str, Any]) -> None:
    agent.server.reply(key, wire.DONE, ok=False, error="cancelled", cancelled=True)


def press_ctrl_c(*seconds: float) -> None:
    main = threading.main_thread().ident or 0
    for after in seconds:
        threading.Timer(after, signal.pthread_kill, [main, signal.SIGINT]).start()


def told(agent: FakeAgent) -> list[Any]:
    """How the agent heard of the end: the answers to what it wants, and whether it was cut before."""
    return [each.get("why_not", "cut") for each in agent.requests if each["kind"] in (wire.PASS, wire.CANCEL)]


def test_a_second_ctrl_c_waits_for_the_withdrawal(ranks: list[FakeAgent], connected: Connect) -> None:
    connection = connected(*ranks)
    press_ctrl_c(0.3, 0.5)
    with pytest.raises(KeyboardInterrupt), cancelled_by_signals(connection.cancel):
        connection.eval("1")
    assert told(ranks[1]) == ["cancelled"]


def test_a_second_cancel_does_not_cut_a_rank_short(ranks: list[FakeAgent], connected: Connect) -> None:
    connection = connected(*ranks)
    for after in (0.3, 0.5):
        threading.Timer(after, connection.cancel).start()
    with pytest.raises(Interrupted):
        connection.eval("1")
    assert told(ranks[1]) == ["cancelled"]


def test_output_that_nobody_takes_any_more_does_not_end_the_withdrawal(
    ranks: list[FakeAgent], connected: Connect
) -> None:
    connection = connected(*ranks)

    def breaks(ranks: list[int], stream: str, text: str) -> None:
        if ranks == [1]:
            raise BrokenPipeError

    threading.Timer(0.3, connection.cancel).start()
    with pytest.raises(BrokenPipeError):
        connection.eval("1", on_output=breaks)
    assert told(ranks[1]) == ["cancelled"]


def test_output_of_the_withdrawal_arrives_after_it(ranks: list[FakeAgent], connected: Connect) -> None:
    connection, said = connected(*ranks), list[Any]()
    threading.Timer(0.3, connection.cancel).start()
    with pytest.raises(Interrupted):
        connection.eval("1", on_output=lambda *output: said.append(output))
    assert said == [([0], "stdout", "at the barrier"), ([1], "stdout", "at the barrier")]


def test_a_cancel_between_two_attempts_is_not_lost(
    ranks: list[FakeAgent], connected: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, withdraw = connected(*ranks), attempt.Attempt.withdraw

    def missed(agent: FakeAgent, key: Key, count: int) -> None:
        agent.on_go = is_ready
        agent.server.reply(key, wire.ERROR, code="eval-missed", message="the step is past")

    def cancelled(self: attempt.Attempt) -> Any:
        connection.cancel()
        return withdraw(self)

    ranks[1].on_go = missed
    ranks[0].on_run = ranks[1].on_run = run_snippet
    monkeypatch.setattr(attempt.Attempt, "withdraw", cancelled)
    with pytest.raises(Interrupted):
        connection.eval("1")
    assert ranks[0].ran_at == ranks[1].ran_at == []


def test_a_ctrl_c_while_the_first_ranks_are_asked_leaves_none_armed(
    ranks: list[FakeAgent], connected: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, send = connected(*ranks), Client.send

    def interrupted(self: Client, link: Any, kind: str, *payload: bytes, **fields: Any) -> Any:
        call = send(self, link, kind, *payload, **fields)
        if kind == wire.ARM and link.rank == 0:
            signal.raise_signal(signal.SIGINT)
        return call

    monkeypatch.setattr(Client, "send", interrupted)
    with pytest.raises(KeyboardInterrupt):
        connection.eval("1")
    until(lambda: told(ranks[0]) == told(ranks[1]) == ["cut"])


@pytest.mark.parametrize("now", [False, True])
def test_where_it_has_run_is_told_when_a_rank_is_lost(ranks: list[FakeAgent], connected: Connect, now: bool) -> None:
    connection = connected(*ranks)
    ranks[0].on_run = run_snippet
    ranks[1].on_run = lambda agent, key, count: threading.Timer(0.3, lose, [agent, key]).start()
    if now:
        ranks[0].on_go, ranks[1].on_go = run_snippet, ranks[1].on_run
    with pytest.raises(SilentError) as lost:
        connection.eval("1", now=now)
    assert str(lost.value).endswith("The snippet: it has run on rank 0; of rank 1 that is unknown.")


def lose(agent: FakeAgent, key: Key) -> None:
    agent.server.on_thread(lambda: agent.server.connections.drop(key[0]), 5)
