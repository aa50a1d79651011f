"""DuckDB for one connection, and the threads that keep its long calls in C from holding anything up.

DuckDB is opened on a thread of its own, begun by Connection.query before it imports whatever else a query needs: that
takes 20 ms without the GIL, and the imports take longer.  The same thread later shares the deriving of tables.
Invariant: threads are created on the thread that opens the connection, since Python would never forget a thread of
DuckDB's that created one; and they end with the connection, or with the call.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

import duckdb

from ..host.cgroups import memory_left

Part = TypeVar("Part")
Value = TypeVar("Value")

SCHEMAS = ("host", "probe", "python")
PATH = f"main,{','.join(SCHEMAS)}"  # for SHOW TABLES, and to write less
_JOIN_S = 0.1  # a lock held with a time-out lets signal handlers in
_LEAST_BYTES = 64 << 20  # with less, sums over some thousand groups fail on many threads, and with none DuckDB itself


class Worker:
    """A second thread.  share() from any thread, one at a time."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "probe")

    def begin(self, work: Callable[[], Value]) -> Future[Value]:
        return self._pool.submit(work)

    def share(self, work: Callable[[Part], Value], parts: Sequence[Part]) -> list[Value]:
        """The result for each part, worked out on this thread or the other; the first error ends it."""
        if len(parts) == 1:
            return [work(parts[0])]
        left, done = deque(enumerate(parts)), dict[int, Value]()

        def some() -> None:
            while True:
                try:
                    place, part = left.popleft()
                except IndexError:
                    return
                try:
                    done[place] = work(part)
                except BaseException:
                    left.clear()
                    raise

        there = self.begin(some)
        try:
            some()
        finally:
            error = there.exception()
        if error is not None:
            raise error
        return [done[place] for place in range(len(parts))]

    def close(self) -> None:
        self._pool.shutdown()


class DuckDBSession:
    """DuckDB with nothing but the schemas.  worker: the thread that opens it, which is idle afterwards."""

    def __init__(self) -> None:
        self.worker = Worker()
        self._opened = self.worker.begin(_open)

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        return self._opened.result()

    def close(self) -> None:
        try:
            with suppress(duckdb.Error):  # in use by a call that repeated Ctrl-C did not wait for
                self.connection.close()
        finally:
            del self._opened  # an error's traceback keeps this object alive, and DuckDB would complain at exit
            self.worker.close()


def _open() -> duckdb.DuckDBPyConnection:
    config: dict[str, Any] = {"python_enable_replacements": "false"}
    if (left := memory_left()) is not None:  # beyond it the kernel would end the training with us, if that is here too
        config["memory_limit"] = f"{max(_LEAST_BYTES, left // 2)}B"
    connection = duckdb.connect(":memory:", config=config)
    connection.execute("SET enable_progress_bar = false")
    connection.execute("SET TimeZone = 'UTC'")  # as `time` is: now() would be compared with it by the user's zone
    for schema in SCHEMAS:
        connection.execute(f"CREATE SCHEMA {schema}")
    connection.execute(f"SET search_path = '{PATH}'")
    return connection


def interruptibly(call: Callable[[], Value], interrupt: Callable[[], None], unwanted: Callable[[], bool]) -> Value:
    """What the call returns, or raises, run on a thread of its own: a signal's handler would wait for its end else.

    interrupt() ends the call, once `unwanted` holds or a handler raises here.  It is repeated until the call is over,
    for DuckDB forgets what comes before it begins.
    """
    outcome: Future[Value] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:  # raised again on the thread that waits
            outcome.set_exception(error)

    thread = threading.Thread(target=run, name="probe-query", daemon=True)
    try:
        thread.start()
        while thread.is_alive():
            thread.join(_JOIN_S)
            if unwanted():
                interrupt()
    except BaseException:  # a handler raised: KeyboardInterrupt
        while thread.is_alive():
            interrupt()
            thread.join(_JOIN_S)
        raise
    return outcome.result()
