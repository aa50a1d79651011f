"""An eval on several ranks: one step for all, and an end whatever the ranks do."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from fake_agent import FakeAgent, Key, is_ready, run_snippet, stand

from probe import protocol as wire
from probe.connection import Connection
from probe.errors import EvalError, Interrupted, SilentError, UsageError
from probe.evals import attempt
from probe.snapshot.stacks import Frame

Make = Callable[..., FakeAgent]
Connect = Callable[..., Connection]

VALIDATES = Frame("train.py", 7, "validate")


@pytest.fixture
def ranks(agent: Make) -> list[FakeAgent]:
    """Two ranks of a job that steps: rank 1 was attached 20 steps later and is one step behind."""
    made = [agent(0, world_size=2), agent(1, world_size=2)]
    for step in range(100):
        made[0].boundary(0, step)
        if 20 <= step < 99:
            made[1].boundary(0, step)
    for one in made:
        one.facts.update(step_ns=10_000_000, last_step_ns=time.monotonic_ns(), distributed=True)
    return made


def test_all_ranks_run_it_at_the_same_step(ranks: list[FakeAgent], connected: Connect) -> None:
    said: list[tuple[list[int], str, str]] = []
    results = connected(*ranks).eval("rank", on_output=lambda *output: said.append(output))
    assert [(r.rank, r.ok, r.output, r.echo, r.held_s) for r in results] == [
        (0, True, "rank 0\n", "42", 0.005),
        (1, True, "rank 1\n", "42", 0.005),
    ]
    assert results[0].step == results[1].step >= 102
    assert ranks[0].ran_at[0] == ranks[1].ran_at[0] + 20
    assert sorted(said) == [([0], "stdout", "rank 0\n"), ([1], "stdout", "rank 1\n")]


def test_one_rank_alone_runs_it_at_its_next_boundary(ranks: list[FakeAgent], connected: Connect) -> None:
    (result,) = connected(*ranks).eval("1", ranks=[1])
    assert (result.rank, result.step, ranks[1].ran_at, ranks[0].ran_at) == (1, 99, [-1], [])
    arm = next(request for request in ranks[1].requests if request["kind"] == "arm")
    assert (arm["ranks"], arm["where"], arm["write"]) == ([1], "boundary", True)


def test_an_endpoint_that_is_one_rank_of_several_is_not_the_whole_job(
    ranks: list[FakeAgent], connected: Connect
) -> None:
    connected(ranks[1]).eval("1")
    connected(*ranks).eval("1")
    asked = [request["ranks"] for request in ranks[1].requests if request["kind"] == "arm"]
    assert asked == [[1], None]  # by which a collective of both is refused, or not


def test_a_step_is_told_by_the_number_that_became_known_with_it(agent: Make, connected: Connect) -> None:
    one = agent()

    def first_step(agent: FakeAgent, key: Key, count: int) -> None:
        agent.boundary(0, 0)
        agent.facts.update(step_base=40, step_source="optimizer")
        run_snippet(agent, key, agent.facts["count"])

    one.on_run = first_step
    (result,) = connected(one).eval("1")
    assert result.step == 40 + one.facts["count"]


def test_ranks_that_are_not_coupled_run_it_each_at_the_next_boundary(
    ranks: list[FakeAgent], connected: Connect
) -> None:
    for one in ranks:
        one.facts["distributed"] = False
    assert [result.ok for result in connected(*ranks).eval("1")] == [True, True]
    assert ranks[0].ran_at == ranks[1].ran_at == [-1]


def test_a_job_of_long_steps_runs_it_at_the_next_boundary(ranks: list[FakeAgent], connected: Connect) -> None:
    for one in ranks:
        one.facts.update(step_ns=10**10, last_step_ns=time.monotonic_ns())
    connected(*ranks).eval("1")
    assert ranks[0].ran_at == [101] and ranks[1].ran_at == [81]


def test_now_needs_no_steps(agent: Make, connected: Connect) -> None:
    (result,) = connected(agent()).eval("1", now=True)
    assert result.ok and result.step is None


def test_a_rank_that_does_not_exist(ranks: list[FakeAgent], connected: Connect) -> None:
    with pytest.raises(UsageError, match="no rank 7"):
        connected(*ranks).eval("1", ranks=[7])


def test_a_step_that_one_rank_has_passed_is_run_by_none_and_a_later_one_by_all(
    ranks: list[FakeAgent], connected: Connect
) -> None:
    asked: list[int] = []

    def miss(agent: FakeAgent, key: Key, count: int) -> None:
        asked.append(count)
        time.sleep(0.2)  # rank 0 has long been ready
        agent.on_go = is_ready
        agent.server.reply(key, wire.ERROR, code="eval-missed", message="the step is past")

    ranks[1].on_go = miss
    results = connected(*ranks).eval("1")
    assert [result.ok for result in results] == [True, True]
    assert len(ranks[0].ran_at) == len(ranks[1].ran_at) == len(asked) == 1
    assert [request["kind"] for request in ranks[0].requests].count("run") == 1


def test_no_rank_runs_before_all_stand_at_the_step(ranks: list[FakeAgent], connected: Connect) -> None:
    def later(agent: FakeAgent, key: Key, count: int) -> None:
        assert ranks[0].ran_at == []
        agent.facts["last_step_ns"] = time.monotonic_ns()
        threading.Timer(1.5, lambda: agent.server.post(key, wire.READY)).start()

    for one in ranks:
        one.facts["step_ns"] = 10**9
    ranks[1].on_go = later
    assert [result.ok for result in connected(*ranks).eval("1")] == [True, True]
    assert [request["kind"] for request in ranks[0].requests].count(
        "stay"
    ) >= 2  # it waits no longer than it is told to


def test_a_rank_that_does_not_come_to_the_step_keeps_all_from_it(ranks: list[FakeAgent], connected: Connect) -> None:
    ranks[1].on_go = lambda agent, key, count: None
    with pytest.raises(EvalError, match=r"No step for \d s .* on rank 1"):
        connected(*ranks).eval("1", timeout=2)
    assert ranks[0].ran_at == ranks[1].ran_at == [] and ranks[0].armed is ranks[1].armed is None


def test_ranks_that_may_have_gone_on_are_not_told_to_run(
    ranks: list[FakeAgent], connected: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt, "STAYING_S", -1.0)
    with pytest.raises(EvalError, match=r"did not agree on a step: the ranks were not told in time") as caught:
        connected(*ranks).eval("1")
    assert caught.value.code == "eval-missed" and ranks[0].ran_at == ranks[1].ran_at == []


def test_ranks_whose_numbers_change_meanwhile_run_nothing(ranks: list[FakeAgent], connected: Connect) -> None:
    connection = connected(*ranks)
    arm = ranks[1].server.handlers[wire.ARM]

    def renumbered(key: Key, request: dict[str, Any], payload: Any) -> None:
        ranks[1].facts["step_base"] += 1
        arm(key, request, payload)

    ranks[1].server.handlers[wire.ARM] = renumbered
    with pytest.raises(EvalError, match="step numbers have just changed") as caught:
        connection.eval("1")
    assert caught.value.code == "eval-missed" and ranks[0].ran_at == ranks[1].ran_at == []


def test_a_rank_without_a_step_since_its_attach_is_waited_for(agent: Make, connected: Connect) -> None:
    """Until its first one it does not know what number the job has come to."""
    made = [agent(rank, world_size=2, distributed=True, step_ns=10_000_000) for rank in (0, 1)]
    for step in range(5):
        made[0].boundary(0, step)
    made[0].facts.update(step_base=100, step_source="optimizer", last_step_ns=time.monotonic_ns())

    def first_step() -> None:
        made[1].boundary(0, 4)
        made[1].facts.update(step_base=104, step_source="optimizer", last_step_ns=time.monotonic_ns())

    threading.Timer(0.5, first_step).start()
    results = connected(*made).eval("1")
    assert results[0].step == results[1].step and made[0].ran_at[0] == made[1].ran_at[0] + 4


def test_ranks_that_do_not_step_since_their_attach_are_named(
    agent: Make, connected: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [agent(rank, world_size=2, distributed=True) for rank in (0, 1)]
    made[0].boundary(0, 4)
    stand(monkeypatch, {made[1]: lambda: [VALIDATES]})
    with pytest.raises(EvalError, match=r"No step since the attach on rank 1: it is in validate ") as caught:
        connected(*made).eval("1", timeout=1.2)
    assert (caught.value.code, made[0].ran_at) == ("no-step", [])


def test_a_rank_that_falls_silent_before_its_first_step_is_not_waited_for_for_ever(
    agent: Make, connected: Connect
) -> None:
    made = [agent(rank, world_size=2, distributed=True) for rank in (0, 1)]
    made[0].boundary(0, 4)
    connection = connected(*made, timeout=0.5)
    made[1].deaf.add("hello")
    begun = time.monotonic()
    with pytest.raises(EvalError, match=r"No step since the attach on rank 1, which does not answer\.") as caught:
        connection.eval("1")
    assert caught.value.code == "no-step" and time.monotonic() - begun < 10


def test_the_time_counts_from_when_all_ranks_have_the_snippet(
    ranks: list[FakeAgent], connected: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full machine it takes a while to send it."""
    arm = attempt.Attempt.arm

    def slowly(self: Any, links: Any) -> None:
        time.sleep(1.2)
        arm(self, links)

    def runs(agent: FakeAgent, key: Key, count: int) -> None:
        threading.Timer(0.2, lambda: agent.server.post(key, wire.DONE, ok=True, count=count)).start()

    ranks[0].on_run = ranks[1].on_run = runs
    monkeypatch.setattr(attempt.Attempt, "arm", slowly)
    assert [result.ok for result in connected(*ranks).eval("1", timeout=1)] == [True, True]


def test_only_what_a_job_has_been_in_all_the_time_is_told(
    ranks: list[FakeAgent], connected: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A helper that it has called meanwhile is not."""
    names, said = iter(["main validate", "main validate log", "main validate"]), list[str]()

    def frames() -> list[Frame]:
        return [Frame("train.py", 7, function) for function in reversed(next(names, "main validate").split())]

    ranks[0].on_go = lambda agent, key, count: None
    ranks[0].facts["last_step_ns"] = time.monotonic_ns() - 42 * 10**9
    stand(monkeypatch, {ranks[0]: frames})
    with pytest.raises(EvalError, match="it is in validate "):
        connected(*ranks).eval("1", timeout=3, on_output=lambda who, stream, text: said.append(text))
    assert len(said) == 1 and "is in validate (train.py:7)" in said[0]


def test_a_step_that_only_some_ranks_ran_is_an_error(ranks: list[FakeAgent], connected: Connect) -> None:
    def late(agent: FakeAgent, key: Key, count: int) -> None:
        time.sleep(0.1)
        agent.server.reply(key, wire.ERROR, code="eval-missed", message="the step is past")

    ranks[1].on_run = late
    with pytest.raises(EvalError) as caught:
        connected(*ranks).eval("1")
    assert caught.value.code == "eval-missed"


def test_what_a_job_does_that_makes_no_step_is_told_until_the_time_is_over(
    ranks: list[FakeAgent], connected: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand(monkeypatch, {ranks[0]: lambda: [VALIDATES]})
    ranks[0].on_go = lambda agent, key, count: None
    ranks[0].facts["last_step_ns"] = time.monotonic_ns() - 42 * 10**9
    begun, said = time.monotonic(), list[tuple[float, Any]]()
    with pytest.raises(EvalError, match=r"No step for 4\d s \(usually 0.01 s\) on rank 0: it is in validate") as caught:
        connected(*ranks).eval("1", timeout=3, on_output=lambda *one: said.append((time.monotonic() - begun, one)))
    assert caught.value.code == "no-step" and "--timeout" in caught.value.hint and "--now" in caught.value.hint
    assert 3 < time.monotonic() - begun < 10
    assert ranks[0].armed is None and ranks[1].armed is None
    ((after, (who, stream, text)),) = said
    assert (who, stream) == ([0], "waiting") and 1 <= after < 3
    assert re.fullmatch(r"waiting for a step: rank 0 is in validate \(train.py:7\), 4\d s after its last step\n", text)


def test_how_long_a_step_usually_takes_is_told_without_powers_of_ten(agent: Make, connected: Connect) -> None:
    one = agent()
    one.boundary(time.monotonic_ns() - 400 * 10**9, 0)
    one.facts.update(step_ns=123 * 10**9)
    one.on_run = lambda agent, key, count: None
    with pytest.raises(EvalError, match=r"No step for 40\d s \(usually 123 s\)"):
        connected(one).eval("1", timeout=1)


@pytest.mark.parametrize("pause_s", [3, 42])
def test_a_job_that_pauses_is_waited_for(ranks: list[FakeAgent], connected: Connect, pause_s: int) -> None:
    """It writes a checkpoint, or validates."""
    for one in ranks:
        one.facts["last_step_ns"] = time.monotonic_ns() - pause_s * 10**9
    assert [result.ok for result in connected(*ranks).eval("1")] == [True, True]


def test_a_job_that_stops_stepping_after_go_is_noticed(ranks: list[FakeAgent], connected: Connect) -> None:
    ranks[0].on_run = ranks[1].on_run = lambda agent, key, count: None
    with pytest.raises(EvalError) as caught:
        connected(*ranks).eval("1", timeout=2)
    assert caught.value.code == "no-step"
    assert ranks[0].armed is None and ranks[1].armed is None


def test_a_loop_that_does_not_turn_after_its_last_step_is_noticed(ranks: list[FakeAgent], connected: Connect) -> None:
    def last_step(one: FakeAgent, key: Key, count: int) -> None:
        one.facts["count"] = max(one.facts["count"], count)

    for one in ranks:
        one.on_run = last_step
        one.facts["holder"] = None
    with pytest.raises(EvalError, match=r"No step for \d s \(usually 0.01 s\)"):
        connected(*ranks).eval("1", timeout=2)


def test_a_long_snippet_is_not_a_job_that_does_not_step(ranks: list[FakeAgent], connected: Connect) -> None:
    def slowly(agent: FakeAgent, key: Key, count: int) -> None:
        agent.facts["count"] = count
        threading.Timer(2.5, lambda: agent.server.post(key, wire.DONE, ok=True, count=count)).start()

    ranks[0].on_run = ranks[1].on_run = slowly
    assert [result.ok for result in connected(*ranks).eval("1")] == [True, True]


@pytest.mark.alone  # it looks at the clock
def test_a_timeout_cancels_all_ranks(ranks: list[FakeAgent], connected: Connect) -> None:
    ranks[1].on_run = lambda agent, key, count: None
    job, begun = connected(*ranks), time.monotonic()
    with pytest.raises(EvalError, match=r"Cancelled after 0.5 s") as caught:
        job.eval("1", timeout=0.5)
    assert caught.value.code == "eval-timeout"
    assert time.monotonic() - begun < 1.0
    assert ranks[1].armed is None


@pytest.mark.alone  # it looks at the clock
def test_a_rank_that_is_stuck_in_c_is_named_within_half_a_second(ranks: list[FakeAgent], connected: Connect) -> None:
    ranks[1].on_run = lambda agent, key, count: None
    ranks[1].deaf.add("cancel")
    job, begun = connected(*ranks), time.monotonic()
    with pytest.raises(EvalError, match=r"did not stop on rank 1 \(pid \d+\): it .*; the job waits for it") as caught:
        job.eval("1", timeout=0.5)
    assert caught.value.code == "eval-timeout"
    assert time.monotonic() - begun < 1.1


def test_ctrl_c_cancels_all_ranks(ranks: list[FakeAgent], connected: Connect) -> None:
    ranks[1].on_run = lambda agent, key, count: None
    connection = connected(*ranks)
    threading.Timer(0.3, connection.cancel).start()
    with pytest.raises(Interrupted):
        connection.eval("1")
    assert ranks[1].armed is None


def test_a_rank_that_does_not_take_the_snippet(ranks: list[FakeAgent], connected: Connect) -> None:
    ranks[1].deaf.add("arm")
    with pytest.raises(SilentError, match=r"Rank 1 .* nothing was run"):
        connected(*ranks, timeout=0.4).eval("1")
    assert ranks[0].armed is None and ranks[0].ran_at == []


def test_an_error_of_the_agent_keeps_its_code(ranks: list[FakeAgent], connected: Connect) -> None:
    def refuse(agent: FakeAgent, key: Key, count: int) -> None:
        agent.server.reply(key, wire.ERROR, code="eval", message="a snippet is running already")

    ranks[0].on_run = refuse
    with pytest.raises(EvalError, match="Rank 0: a snippet is running already"):
        connected(*ranks).eval("1")


def test_a_rank_that_cancels_it_first_at_its_time_out_is_believed(ranks: list[FakeAgent], connected: Connect) -> None:
    """The command itself is late, on a busy machine."""

    def cancelled(agent: FakeAgent, key: Key, count: int) -> None:
        agent.server.post(key, wire.OUT, stream="stdout", text="begun")
        agent.server.post(key, wire.DONE, ok=False, error="cancelled", traceback=None, cancelled=True)

    ranks[0].on_run = cancelled
    with pytest.raises(EvalError, match=r"Cancelled after 0.3 s") as caught:
        connected(ranks[0]).eval("1", timeout=0.3, on_output=lambda *output: time.sleep(0.5))
    assert caught.value.code == "eval-timeout"


def wants(agent: FakeAgent, key: Key, number: int, operation: str = "barrier", ending: bool = False) -> None:
    """As if the snippet had come to this operation."""
    taking_part = {"group": "0", "ranks": [0, 1], "peer": None, "tag": None, "inside": False, "ending": ending}
    agent.server.post(key, wire.WANTS, number=number, operation=operation, **taking_part)


def answers(agent: FakeAgent) -> list[tuple[int, str]]:
    return [(each["number"], each["why_not"]) for each in agent.requests if each["kind"] == "pass"]


def test_an_operation_between_ranks_begins_on_all_of_them(ranks: list[FakeAgent], connected: Connect) -> None:
    def late(agent: FakeAgent, key: Key, count: int) -> None:
        assert answers(ranks[0]) == []
        threading.Timer(0.3, wants, [agent, key, 1]).start()

    def goes_on(agent: FakeAgent, key: Key, request: dict[str, Any]) -> None:
        run_snippet(agent, key, agent.target)

    ranks[0].on_run = lambda agent, key, count: wants(agent, key, 1)
    ranks[1].on_run = late
    for one in ranks:
        one.on_pass = goes_on
    assert [result.ok for result in connected(*ranks).eval("1")] == [True, True]
    assert answers(ranks[0]) == answers(ranks[1]) == [(1, "")]


def test_a_rank_whose_others_have_ended_is_told_why_its_operation_does_not_begin(
    ranks: list[FakeAgent], connected: Connect
) -> None:
    ranks[0].on_run = lambda agent, key, count: wants(agent, key, 1)
    ranks[0].on_pass = lambda agent, key, request: run_snippet(agent, key, agent.target)
    connected(*ranks).eval("1")
    assert answers(ranks[0]) == [(1, "rank 1 has ended the snippet without it")]


def test_no_operation_begins_after_the_cancel(ranks: list[FakeAgent], connected: Connect) -> None:
    connection = connected(*ranks)

    def late(agent: FakeAgent, key: Key, count: int) -> None:
        connection.cancel()
        threading.Timer(0.3, wants, [agent, key, 1]).start()

    ranks[0].on_run = lambda agent, key, count: wants(agent, key, 1)
    ranks[1].on_run = late
    ranks[0].deaf.add("cancel")
    with pytest.raises(EvalError, match="did not stop on rank 0"):
        connection.eval("1")
    assert {*answers(ranks[0]), *answers(ranks[1])} == {(1, "cancelled")}


def test_a_rank_that_is_cancelled_by_its_agent_ends_the_others(ranks: list[FakeAgent], connected: Connect) -> None:
    """At a detach of one rank, or where its time-out comes first."""
    ranks[0].on_run = lambda agent, key, count: wants(agent, key, 1, ending=True)
    ranks[1].on_run = lambda agent, key, count: None
    with pytest.raises(Interrupted):
        connected(*ranks).eval("1")
    assert ranks[0].armed is None and ranks[1].armed is None


def test_a_rank_that_stands_and_is_cancelled_by_its_agent_is_ended_by_the_command(
    ranks: list[FakeAgent], connected: Connect
) -> None:
    """For the command may have let the operation begin on others."""

    def stands(agent: FakeAgent, key: Key, count: int) -> None:
        wants(agent, key, 1)
        threading.Timer(0.3, wants, [agent, key, 1, "barrier", True]).start()

    ranks[0].on_run = stands
    ranks[1].on_run = lambda agent, key, count: None
    with pytest.raises(Interrupted):
        connected(*ranks).eval("1")
    assert ranks[0].armed is None and ranks[1].armed is None
    assert answers(ranks[1]) == []


def test_a_rank_that_is_in_a_call_gets_the_time_to_come_out_of_it(ranks: list[FakeAgent], connected: Connect) -> None:
    ranks[0].deaf.add("cancel")

    def later(agent: FakeAgent, key: Key, count: int) -> None:
        agent.server.post(key, wire.ENDING)
        threading.Timer(1.5, lambda: agent.server.post(key, wire.DONE, ok=False, error="cancelled")).start()

    ranks[0].on_run = later
    with pytest.raises(EvalError, match=r"Cancelled after 0.3 s"):
        connected(*ranks).eval("1", timeout=0.3)


def test_a_rank_that_may_come_to_the_first_operation_of_the_others_is_not_cut_before(
    ranks: list[FakeAgent], connected: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes while the eval is withdrawn, which has begun once rank 0 stood there."""
    connection, withdraw, withdrawn = connected(*ranks), attempt.Attempt.withdraw, threading.Event()
    for seconds in ("_COMING_S", "_ENDING_S", "_MOST_ENDING_S"):  # more than a busy machine needs
        monkeypatch.setattr(attempt, seconds, 60.0)
    monkeypatch.setattr(attempt.Attempt, "withdraw", lambda self: withdrawn.set() or withdraw(self))

    def stands(agent: FakeAgent, key: Key, count: int) -> None:
        wants(agent, key, 1)
        agent.server.post(key, wire.OUT, stream="stdout", text="stands")

    def late(agent: FakeAgent, key: Key, count: int) -> None:
        agent.server.handlers[wire.STAY] = lambda *stay: wants(agent, key, 1) if withdrawn.is_set() else None

    def ends(agent: FakeAgent, key: Key, request: dict[str, Any]) -> None:
        agent.server.reply(key, wire.DONE, ok=False, error="cancelled", cancelled=True)

    ranks[0].on_run = stands
    ranks[1].on_run, ranks[1].on_pass = late, ends
    with pytest.raises(Interrupted):
        connection.eval("1", on_output=lambda *output: connection.cancel())
    assert answers(ranks[1]) == [(1, "cancelled")]
    assert "cancel" not in [each["kind"] for each in ranks[1].requests]


def test_ranks_that_do_not_run_it_at_one_step_begin_no_operation(ranks: list[FakeAgent], connected: Connect) -> None:
    """Their process group is newer than the connection."""
    for one in ranks:
        one.facts["distributed"] = False
        one.on_run = lambda agent, key, count: wants(agent, key, 1)
        one.on_pass = lambda agent, key, request: run_snippet(agent, key, agent.target)
    connected(*ranks).eval("1")
    assert answers(ranks[0]) == [(1, "the ranks do not run the eval at one step: run it again")]


def test_what_may_have_been_given_up_meanwhile_does_not_begin(
    ranks: list[FakeAgent], connected: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(agent: FakeAgent, key: Key, count: int) -> None:
        monkeypatch.setattr(attempt, "STAYING_S", -1.0)
        wants(agent, key, 1)

    ranks[0].on_run = lambda agent, key, count: wants(agent, key, 1)
    ranks[1].on_run = stopped
    with pytest.raises(EvalError, match="The command was stopped for too long"):
        connected(*ranks).eval("1")
    assert {*answers(ranks[0]), *answers(ranks[1])} == {(1, "the command was stopped for too long")}
