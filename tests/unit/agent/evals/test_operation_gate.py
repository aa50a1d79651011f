"""In front of operations between ranks a snippet waits for its client, and ends there once it is cancelled.

Stdlib only: these tests run on every Python that is supported (test_every_python.py).
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from until import until

from probe.agent.evals import gates
from probe.agent.evals.gates import OperationGate
from probe.agent.evals.interrupt import Cancelled
from probe.agent.inspect.call_around import snippet_outside


def taking_part(operation: str) -> dict[str, Any]:
    return {"operation": operation, "group": "0", "ranks": (0, 1), "peer": None, "tag": None}


class Standing:
    """A thread in front of an operation; raised: what came of it, None if it began."""

    def __init__(self, gate: OperationGate, operation: str = "barrier", around: Any = None) -> None:
        self.raised: BaseException | None = None
        self._enter = lambda: gate.enter(taking_part(operation), around)
        self._thread = threading.Thread(target=self._run)
        before = gate.asked
        self._thread.start()
        until(lambda: (gate.asked > before and gate.is_waiting) or not self._thread.is_alive(), every_s=0.001)

    def _run(self) -> None:
        try:
            self._enter()
        except BaseException as error:
            self.raised = error

    def ended(self) -> BaseException | None:
        self._thread.join(10)
        assert not self._thread.is_alive()
        return self.raised


def made() -> tuple[OperationGate, list[dict[str, Any]]]:
    sent: list[dict[str, Any]] = []
    return OperationGate(lambda kind, fields: sent.append(fields)), sent


def test_it_begins_when_the_client_lets_it() -> None:
    gate, sent = made()
    standing = Standing(gate)
    gate.decide(1, "", last=False)
    assert standing.ended() is None and gate.is_beginning
    gate.has_begun()
    assert not gate.is_beginning
    assert sent == [{**taking_part("barrier"), "number": 1, "inside": False, "ending": False}]


def test_what_does_not_begin_says_why() -> None:
    gate, _ = made()
    standing = Standing(gate)
    gate.decide(1, "rank 1 has ended", last=False)
    error = standing.ended()
    assert isinstance(error, RuntimeError) and not gate.is_beginning
    assert str(error) == "barrier on group '0' was not begun: rank 1 has ended"


def test_an_answer_to_an_earlier_operation_decides_nothing() -> None:
    gate, _ = made()
    standing = Standing(gate)
    gate.decide(2, "", last=False)
    assert gate.is_waiting
    gate.decide(1, "", last=False)
    gate.decide(1, "too late", last=False)
    assert standing.ended() is None and gate.is_beginning


def test_a_cancelled_snippet_ends_in_front_of_the_operation_or_of_the_next() -> None:
    gate, sent = made()
    standing = Standing(gate)
    assert gate.close() and not gate.close()
    gate.decide(1, "", last=False)
    assert isinstance(standing.ended(), Cancelled) and not gate.is_beginning
    assert isinstance(Standing(gate).ended(), Cancelled) and len(sent) == 1


def test_what_receives_is_for_the_client_to_decide_also_after_the_cancel() -> None:
    gate, sent = made()
    assert not gate.close()
    standing = Standing(gate, "recv")
    assert not gate.close() and sent[-1]["ending"]
    gate.decide(1, "", last=True)
    assert standing.ended() is None
    standing = Standing(gate, "recv")
    gate.decide(2, "cancelled", last=True)
    assert isinstance(standing.ended(), Cancelled)


def test_a_client_that_is_gone_begins_nothing_but_what_is_a_part_of_a_call() -> None:
    gate, sent = made()
    standing = Standing(gate)
    gate.abandon()
    assert isinstance(standing.ended(), Cancelled)
    frame = sys._getframe()
    gate.enter(taking_part("allreduce"), frame)  # at once
    assert len(sent) == 1


def test_what_is_a_part_of_a_call_does_not_begin_either_if_the_snippet_was_cancelled_before() -> None:
    """Other ranks may train on already, and one of theirs would match."""
    gate, sent = made()
    standing = Standing(gate, around=sys._getframe())
    assert not gate.close()
    gate.ask_to_end()
    assert [each["ending"] for each in sent] == [False, True] and gate.is_waiting
    gate.abandon()
    assert isinstance(standing.ended(), Cancelled)


def test_the_agents_thread_may_be_gone() -> None:
    before, gates.LOST_SECONDS = gates.LOST_SECONDS, 0.05
    try:
        gate, _ = made()
        assert isinstance(Standing(gate).ended(), Cancelled)
    finally:
        gates.LOST_SECONDS = before


def test_a_call_that_its_own_agent_wants_to_end_goes_on_where_the_client_is_gone() -> None:
    """On all ranks alike: no client has ended it on one of them."""
    gate, _ = made()
    standing = Standing(gate, around=sys._getframe())
    gate.ask_to_end()
    gate.abandon()
    assert standing.ended() is None


def test_the_job_below_a_snippet_is_not_its_frame_though_its_file_has_the_same_name() -> None:
    """`eval -f train.py` of a job that runs train.py."""

    def snippet() -> None:
        assert snippet_outside(sys._getframe()) is sys._getframe(1)

    def as_agent(work: Callable[[], None]) -> None:
        exec("work()", {"work": work, "__package__": gates.__package__})

    def at_once() -> None:
        assert snippet_outside(sys._getframe()) is None

    snippet()
    as_agent(at_once)


class PlayedLock:
    """A lock whose time-outs come when the test says so."""

    def __init__(self) -> None:
        self.waits, self._turns = 0, SimpleQueue[bool]()

    def acquire(self, timeout: float | None = None) -> bool:
        if timeout is None:
            return True
        self.waits += 1
        return self._turns.get()

    def release(self) -> None:
        self._turns.put(True)

    def time_out(self) -> None:
        self._turns.put(False)


def test_it_waits_for_other_ranks_as_long_as_its_client_is_there() -> None:
    lock = PlayedLock()
    before, gates.allocate_lock = gates.allocate_lock, lambda: lock  # type: ignore[assignment,return-value]
    try:
        gate, _ = made()
        standing = Standing(gate)
        for periods in range(1, 11):
            assert not gate.is_left(time.monotonic())
            lock.time_out()
            until(lambda over=periods: lock.waits > over or not gate.is_waiting, every_s=0.001)  # type: ignore[misc]
            assert gate.is_waiting
        gate.decide(1, "", last=False)
        assert standing.ended() is None
    finally:
        gates.allocate_lock = before


def test_a_client_that_is_silent_for_too_long_has_left() -> None:
    gate, _ = made()
    standing = Standing(gate)
    assert not gate.is_left(0.0)
    before, gates.CLIENT_TIMEOUT_SECONDS = gates.CLIENT_TIMEOUT_SECONDS, 0.0
    try:
        assert not gate.is_left(0.0)  # what has come meanwhile is read first
        assert gate.is_left(0.0) and not gate.is_left(time.monotonic() + 60)
        assert not gate.is_left(0.0) and gate.is_left(0.0)
    finally:
        gates.CLIENT_TIMEOUT_SECONDS = before
    gate.abandon()
    assert isinstance(standing.ended(), Cancelled)


def steps(gate: OperationGate, call: Callable[[], None], done: list[str]) -> None:
    try:
        done.append("before")
        call()
        done.append("after")
    finally:
        gate.next_line.remove()


def test_a_call_comes_to_its_end_and_the_snippet_ends_at_its_next_line() -> None:
    gate, _ = made()
    done: list[str] = []

    def let_begin() -> None:
        until(lambda: gate.is_waiting, every_s=0.001)
        gate.decide(1, "", True)

    def backward() -> None:
        frame = sys._getframe(1)
        answer = threading.Thread(target=let_begin)
        answer.start()
        gate.enter(taking_part("allreduce"), frame)
        answer.join()
        for _ in range(3):
            done.append("inside")

    def last_statement() -> None:
        """The operation is in the last call of a function of the snippet: its next line is in the caller."""
        backward()

    before = sys.gettrace()
    try:
        steps(gate, last_statement, done)
    except Cancelled:
        done.append("cancelled")
    assert done == ["before", "inside", "inside", "inside", "cancelled"]
    assert sys.gettrace() is before
