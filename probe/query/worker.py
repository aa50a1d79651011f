"""A second thread for what takes long without the GIL: to open DuckDB, and to derive tables.

One a probe.query.database.Database.  Invariant: it is made on the thread that opens the connection, for a thread of
DuckDB's that makes one would stay known to Python for ever; and it ends with the connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Part = TypeVar("Part")
Result = TypeVar("Result")


class Worker:
    """share() from any thread, one at a time."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "probe")

    def begin(self, work: Callable[[], Result]) -> Future[Result]:
        return self._pool.submit(work)

    def share(self, work: Callable[[Part], Result], parts: Sequence[Part]) -> list[Result]:
        """What becomes of each part, here or there; the first error ends it."""
        left, done = deque(enumerate(parts)), dict[int, Result]()

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
