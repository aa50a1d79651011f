"""A dict that the job got from locals() keeps its values, whoever reads or writes the frame's variables.

Stdlib only: these tests run on every Python that is supported (test_every_python.py).
"""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import Any

from probe.agent.inspect.frame_locals import Copies, read, write
from probe.agent.names.namespace import empty_running, read_running


def job(rate: float, count: int) -> tuple[dict[str, Any], dict[str, Any], Any]:
    config = locals()
    config["rate"], config["run"] = 0.5, "mine"
    before, loss = dict(config), object()

    def cell() -> Any:
        return count, loss

    assert read(sys._getframe())["rate"] == 0.1 and config == before
    write(sys._getframe(), {"count": 4})
    assert cell() == (4, loss) and config == before
    return config, before, loss


def test_reading_and_writing_leave_it() -> None:
    config, before, _ = job(0.1, 3)
    assert config == before


def test_reading_another_threads_variables_leaves_it() -> None:
    frames, results = list[FrameType](), list[bool]()
    stands, goes = threading.Lock(), threading.Lock()
    stands.acquire(), goes.acquire()

    def other(rate: float) -> None:
        config = locals()
        config["rate"] = 0.5
        before, loss = dict(config), object()
        frames.append(sys._getframe())
        stands.release()
        goes.acquire()
        results.append(config == before and loss not in config.values())

    thread = threading.Thread(target=other, args=(0.1,))
    thread.start()
    stands.acquire()
    copies = Copies()
    assert read_running(frames[0], copies)["rate"] == 0.1
    empty_running(frames, copies)
    goes.release()
    thread.join()
    assert results == [True]


def test_a_copy_that_only_the_frame_holds_is_emptied() -> None:
    def held() -> int:
        value = object()
        read(sys._getframe())
        return sys.getrefcount(value)

    def alone() -> int:
        value = object()
        return sys.getrefcount(value)

    assert held() == alone()
