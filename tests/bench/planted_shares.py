"""Jobs whose time is planted, and measured by themselves: `planted_shares.py NAME FILE`.

FILE is mapped: the seconds in phase_a and in phase_b so far, as two doubles.  The phases alternate for ever.
"""

from __future__ import annotations

import asyncio
import hashlib
import mmap
import pickle
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "targets"))

from profiled import small, spin

Phases = tuple[Callable[[], object], Callable[[], object]]

BUFFER, NUMBERS = bytes(3 << 20), [random.random() for _ in range(9000)]
RECORDS = [{"name": str(n), "values": list(range(20))} for n in range(2000)]


def python() -> Phases:
    def phase_a() -> None:
        spin(100_000)

    def phase_b() -> None:
        spin(25_000)

    return phase_a, phase_b


def numpy() -> Phases:
    import numpy as np

    matrix = np.random.default_rng(0).random((300, 300))

    def phase_a() -> None:
        np.sort(np.tanh(matrix), axis=None)

    def phase_b() -> None:
        spin(40_000)

    return phase_a, phase_b


def gil_held() -> Phases:
    def phase_a() -> None:
        sorted(NUMBERS * 3)

    def phase_b() -> None:
        spin(25_000)

    return phase_a, phase_b


def gil_released() -> Phases:
    def phase_a() -> None:
        hashlib.sha256(BUFFER).digest()

    def phase_b() -> None:
        spin(40_000)

    return phase_a, phase_b


def generated(rounds: int) -> Iterator[int]:
    def inner() -> Iterator[int]:
        for each in range(rounds):
            yield small(each)

    yield from inner()


def generators() -> Phases:
    def phase_a() -> None:
        sum(generated(60_000))

    def phase_b() -> None:
        sum(generated(30_000))

    return phase_a, phase_b


def asynchronous() -> Phases:
    async def deeper(rounds: int) -> int:
        await asyncio.sleep(0)
        return sum(generated(rounds))

    async def phase_a() -> None:
        await deeper(70_000)

    async def phase_b() -> None:
        await deeper(30_000)

    loop = asyncio.new_event_loop()
    return lambda: loop.run_until_complete(phase_a()), lambda: loop.run_until_complete(phase_b())


def c_extension() -> Phases:
    def phase_a() -> None:
        pickle.loads(pickle.dumps(RECORDS))

    def phase_b() -> None:
        spin(20_000)

    return phase_a, phase_b


def loader_thread() -> Phases:
    return python()


JOBS = {
    each.__name__: each
    for each in (python, numpy, gil_held, gil_released, generators, asynchronous, c_extension, loader_thread)
}


def forever(spent: memoryview, phases: Phases) -> None:
    end = time.perf_counter()
    while True:
        for place, phase in enumerate(phases):
            phase()
            begin, end = end, time.perf_counter()
            spent[place] += end - begin


def main() -> None:
    with open(sys.argv[2], "r+b") as file:
        spent = memoryview(mmap.mmap(file.fileno(), 16)).cast("d")
    phases = JOBS[sys.argv[1]]()
    print("ready", flush=True)
    if sys.argv[1] == "loader_thread":
        threading.Thread(target=forever, args=(spent, phases), name="loader", daemon=True).start()
        while True:
            time.sleep(1)
    forever(spent, phases)


if __name__ == "__main__":
    main()
