"""A trace of a function that calls itself: it ends before its frames have the job come to Python's limit.

Standard library only: these tests run on every supported Python (test_every_python.py).
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator

from traced import traced


def test_a_deep_recursion_ends_the_trace_and_not_itself() -> None:
    def deep(n: int) -> int:
        return 0 if not n else 1 + deep(n - 1)

    depth = sys.getrecursionlimit() - 250
    with traced(deep) as found:
        assert deep(50) == 50 and not found.trace.why_off and len(found.rows) == 51
        assert deep(depth) == depth and "100 deep" in found.trace.why_off


def test_a_deep_recursion_of_generators_or_coroutines_ends_the_trace_and_not_itself() -> None:
    def descend(n: int) -> Iterator[int]:
        yield n
        if n:
            yield from descend(n - 1)

    async def deep(n: int) -> int:
        return 0 if not n else 1 + await deep(n - 1)

    depth = sys.getrecursionlimit() - 350
    with traced(descend) as found:
        assert sum(1 for _ in descend(50)) == 51 and not found.trace.why_off
        assert sum(1 for _ in descend(depth)) == depth + 1 and "100 deep" in found.trace.why_off
    with traced(deep) as found:
        assert asyncio.run(deep(50)) == 50 and not found.trace.why_off
        assert asyncio.run(deep(depth)) == depth and "100 deep" in found.trace.why_off


def test_many_calls_that_wait_beside_each_other_are_no_recursion() -> None:
    async def wait(event: asyncio.Event) -> None:
        await event.wait()

    async def main() -> None:
        event = asyncio.Event()
        tasks = [asyncio.ensure_future(wait(event)) for _ in range(300)]
        await asyncio.sleep(0)
        event.set()
        await asyncio.gather(*tasks)

    with traced(wait) as found:
        asyncio.run(main())
        assert len(found.rows) == 300 and not found.trace.why_off


def test_many_threads_in_one_function_are_no_recursion() -> None:
    count, inside = 120, threading.Semaphore(0)
    go_on = threading.Event()

    def wait() -> bool:
        inside.release()
        return go_on.wait(60)

    with traced(wait) as found:
        threads = [threading.Thread(target=wait) for _ in range(count)]
        for thread in threads:
            thread.start()
        for _ in range(count):
            inside.acquire()
        assert not found.trace.why_off
        go_on.set()
        for thread in threads:
            thread.join()
        assert len(found.rows) == count
