"""A training whose time goes into two functions, 4 to 1; with a thread that sleeps in a function of its own.

FILE is mapped: the seconds that each function has taken so far, as two doubles.
"""

from __future__ import annotations

import mmap
import sys
import threading
import time


def small(number: int) -> int:
    return number & 7


def spin(rounds: int) -> int:
    total = 0
    for each in range(rounds):
        total += small(each)
    return total


def much() -> None:
    spin(80_000)


def little() -> None:
    spin(20_000)


def sleeps() -> None:
    while True:
        time.sleep(60)


def main() -> None:
    import fast_import  # noqa: F401  # not for those who import spin()
    import torch

    with open(sys.argv[1], "r+b") as file:
        spent = memoryview(mmap.mmap(file.fileno(), 16)).cast("d")
    threading.Thread(target=sleeps, name="sleeper", daemon=True).start()
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    print("ready", flush=True)
    while True:
        for place, function in enumerate((much, little)):
            begin = time.perf_counter()
            function()
            spent[place] += time.perf_counter() - begin
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()


if __name__ == "__main__":
    main()
