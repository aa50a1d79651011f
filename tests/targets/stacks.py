"""Threads asleep in known stacks: prints where the interpreter keeps its frames, and the stacks as Python has them."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from agent.inspect.interpreter_layout import interpreter_layout  # type: ignore[import-not-found]

stop = threading.Lock()
stop.acquire()


def recursive(depth: int) -> None:
    if depth:
        recursive(depth - 1)
    else:
        stop.acquire()


class Compared:
    def __lt__(self, other: object) -> bool:
        stop.acquire()
        return False


def in_c() -> None:
    sorted([Compared(), Compared()])


def inner() -> Any:
    yield 1
    stop.acquire()


def outer() -> Any:
    yield from inner()


async def deeper() -> int:
    return sum(outer())


async def awaited() -> int:
    return await deeper()


def in_coroutine() -> None:
    awaited().send(None)


def größe() -> None:
    ждать()


def ждать() -> None:
    𐌰𐌱()


def 𐌰𐌱() -> None:
    stop.acquire()


def in_lambda() -> None:
    (lambda: stop.acquire())()


def main() -> None:
    bodies = [lambda: recursive(27), in_c, in_coroutine, größe, in_lambda]
    threads = [threading.Thread(target=body, daemon=True) for body in bodies]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    layout = interpreter_layout()
    while len(sys._current_frames()) > len(threads) + 1:  # the threads that tell the layout are about to end
        time.sleep(0.01)
    stacks: dict[int, list[list[Any]]] = {}
    frames = sys._current_frames()
    for thread in threads:
        frame, found = frames[thread.ident], stacks.setdefault(thread.ident or 0, [])
        while frame is not None:
            code = frame.f_code
            found.append([code.co_filename, getattr(code, "co_qualname", code.co_name), frame.f_lineno])
            frame = frame.f_back  # type: ignore[assignment]
    print(json.dumps({"layout": layout, "stacks": stacks}), flush=True)
    sys.stdin.read()


main()
