"""Ctrl-C in a query: it ends at once, and the agents stop sending."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator

import duckdb
import pytest
from fake_agent import FakeAgent
from until import until

from probe import protocol as wire
from probe.cli import session
from probe.connection import Connection
from probe.errors import Interrupted
from probe.query import database
from probe.query.duckdb_session import DuckDBSession, interruptibly

Make = Callable[..., FakeAgent]
Connect = Callable[..., Connection]
ENDLESS = "SELECT sum(a.range * b.range) FROM range(10000000) a, range(10000000) b"
LONG = ENDLESS.replace("range(10000000) b", "range(150) b")  # some seconds


@pytest.fixture
def press() -> Iterator[Callable[[Connection], None]]:
    """Has Ctrl-C pressed after a moment; the connection's cancel() is the handler, as in the command line."""
    before = signal.getsignal(signal.SIGINT)
    timers: list[threading.Timer] = []

    def arrange(connection: Connection, after: float | None = 0.3) -> None:
        signal.signal(signal.SIGINT, lambda number, frame: connection.cancel())
        if after is not None:
            timers.append(threading.Timer(after, lambda: signal.raise_signal(signal.SIGINT)))
            timers[-1].start()

    yield arrange
    for timer in timers:
        timer.join()
    signal.signal(signal.SIGINT, before)


def test_in_the_middle_of_duckdbs_work(agent: Make, connected: Connect, press: Callable[[Connection], None]) -> None:
    connection = connected(agent())
    press(connection)
    begun = time.monotonic()
    with pytest.raises(Interrupted):
        connection.query(ENDLESS)
    assert time.monotonic() - begun < 15
    assert connection.query("SELECT 1 AS one").to_pylist() == [{"one": 1}]


def test_while_the_query_is_still_imported(
    agent: Make, connected: Connect, press: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = connected(agent())
    press(connection, after=None)

    class Slow:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "probe.query.database":
                signal.raise_signal(signal.SIGINT)

    monkeypatch.delitem(sys.modules, "probe.query.database", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Slow(), *sys.meta_path])
    with pytest.raises(Interrupted):
        connection.query(ENDLESS)


@pytest.mark.parametrize("raising", [False, True], ids=["asked", "a handler raises"])
def test_it_is_repeated_until_the_call_is_over(raising: bool) -> None:
    asked: list[None] = []
    enough = threading.Event()

    def interrupt() -> None:
        asked.append(None)
        if len(asked) == 3:  # the first ones came before there was anything to interrupt
            enough.set()

    def unwanted() -> bool:
        if raising:
            raise KeyboardInterrupt
        return True

    if raising:
        with pytest.raises(KeyboardInterrupt):
            interruptibly(lambda: enough.wait(20), interrupt, unwanted)
    else:
        assert interruptibly(lambda: enough.wait(20), interrupt, unwanted)
    assert enough.is_set()


def test_when_the_query_is_over_there_is_nothing_to_cancel(agent: Make, connected: Connect) -> None:
    connection = connected(agent())

    def cancel(*_: object) -> list[str]:
        connection.cancel()
        return []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "notes_of", cancel)
        assert connection.query("SELECT 1 AS one").to_pylist() == [{"one": 1}]
    assert connection.query("SELECT 1 AS one").to_pylist() == [{"one": 1}]


def test_while_rows_are_awaited(agent: Make, connected: Connect, press: Callable[..., None]) -> None:
    one = agent()
    one.train(10)
    connection = connected(one, timeout=30)
    one.server.handlers[wire.SCAN] = lambda *_: signal.raise_signal(signal.SIGINT)  # and never answers
    press(connection, after=None)
    begun = time.monotonic()
    with pytest.raises(Interrupted):
        connection.query("SELECT * FROM python.torch_trace")
    assert time.monotonic() - begun < 15
    until(lambda: "cancel" in [request["kind"] for request in one.requests])


def test_a_session_is_closed_although_a_repeated_ctrl_c_left_its_call_running() -> None:
    session = DuckDBSession()
    connection, over = session.connection, threading.Event()

    def call() -> None:
        while not over.is_set():
            with contextlib.suppress(duckdb.Error):  # refused while it is asked whether it is busy, or interrupted
                connection.sql(LONG).fetchall()  # it may go on after the close, where nothing interrupts it

    thread = threading.Thread(target=call)
    thread.start()
    try:
        until(lambda: _is_busy(connection))
        session.close()
    finally:
        over.set()
        while thread.is_alive():
            with contextlib.suppress(duckdb.Error):  # closed, if it was not busy after all
                connection.interrupt()
            thread.join(0.1)


def _is_busy(connection: duckdb.DuckDBPyConnection) -> bool:
    try:
        connection.execute("SELECT 1")
    except duckdb.Error:
        return True
    return False


def test_a_signal_that_comes_before_the_call_has_begun_is_not_forgotten(agent: Make, connected: Connect) -> None:
    connection = connected(agent())
    with pytest.raises(Interrupted), session.ctrl_c_cancels(connection):
        signal.raise_signal(signal.SIGINT)
        connection.query(ENDLESS)
    assert connection.query("SELECT 1 AS one").to_pylist() == [{"one": 1}]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nor_does_a_verb_forget_it(agent: Make, number: signal.Signals) -> None:
    with pytest.raises(Interrupted), session.connected(agent().server.endpoint) as connection:
        signal.raise_signal(number)
        connection.query(ENDLESS)
