"""A second thread for work that takes long without the GIL: opening DuckDB, and deriving tables.

One for each probe.query.database.Database.  Invariant: it is created on the thread that opens the connection, since
Python would never forget a thread of DuckDB's that created one; and it ends with the connection.
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
        """The result for each part, worked out on this thread or the other; the first error ends it."""
        if len(parts) == 1:
            return [work(parts[0])]
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
