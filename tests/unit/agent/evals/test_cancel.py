"""A snippet can be interrupted at any moment, and the interrupt reaches the snippet or nobody.

Stdlib only: these tests run on every Python that is supported (test_every_python.py).
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from typing import Any

from until import until

from probe.agent.boundary.boundary import Boundary
from probe.agent.evals.evaluation import Evaluation
from probe.agent.evals.interrupt import Cancelled, Interruptible
from probe.agent.storage.log import Log
from probe.agent.storage.rows import Stream
from probe.streams import SPANS, STREAMS

AT_THE_EDGE = int(os.environ.get("CANCELS", "2500"))
SECONDS = max(8.0, AT_THE_EDGE / 300)  # no longer than this, on a busy machine


class Snippets:
    """Evaluations on this thread, and what they were answered with."""

    def __init__(self) -> None:
        self.log, self.spans = Log(), Stream(SPANS, STREAMS[SPANS], retention_bytes=1)
        self.own: dict[str, Any] = {}
        self.done: list[dict[str, Any]] = []

    def __enter__(self) -> Snippets:
        return self

    def __exit__(self, *error: object) -> None:
        self.log.close()
        self.spans.close()

    def new(self, code: str, where: str = "boundary") -> Evaluation:
        def send(kind: str, fields: dict[str, Any]) -> None:
            if kind == "done":
                self.done.append(fields)

        return Evaluation(
            code=code, filename="<eval>", write=where == "boundary", send=send, log=self.log, spans=self.spans,
            own=self.own, where=where,
        )  # fmt: skip

    def cancelled(self, code: str, inside: str = "") -> dict[str, Any]:
        """What is told of the snippet when it is cancelled soon after its code runs, or this function of it, and again
        until it ends."""
        evaluation, thread_id = self.new(code), threading.get_ident()

        def is_inside() -> bool:
            frame = sys._current_frames().get(thread_id)
            while frame is not None:
                if frame.f_code.co_filename == "<eval>" and inside in ("", frame.f_code.co_name):
                    return True
                frame = frame.f_back
            return False

        def cancel() -> None:
            until(is_inside, every_s=0.001)
            while not evaluation.done:
                time.sleep(0.03)
                evaluation.cancel()

        thread = threading.Thread(target=cancel)
        thread.start()
        evaluation.run_at(sys._getframe(), 0)
        thread.join()
        return self.done[-1]


def test_an_endless_snippet_is_interrupted_where_it_stands() -> None:
    with Snippets() as snippets:
        done = snippets.cancelled("def spin():\n    while True: pass\nspin()", inside="spin")
    assert done["cancelled"] and not done["ok"] and done["error"] == "cancelled"
    assert "in spin" in done["traceback"] and done["traceback"].endswith("cancelled\n")
    assert "Cancelled" not in done["traceback"]


def test_a_snippet_that_catches_everything_is_interrupted_again() -> None:
    code = """
caught = 0
while caught < 3:
    try:
        caught += 0
        while True: len("")
    except BaseException:
        caught += 1
caught += 0  # what is raised in the jump of a loop of one line counts as raised in the line before
while True: len("")
"""
    with Snippets() as snippets:
        done = snippets.cancelled(code)
        assert done["cancelled"] and snippets.own["caught"] == 3


def test_a_snippet_that_is_cancelled_before_it_starts_does_not_run() -> None:
    with Snippets() as snippets:
        evaluation = snippets.new("ran = True")
        evaluation.cancel()
        evaluation.run_at(sys._getframe(), 0)
        assert snippets.done[0]["cancelled"] and snippets.done[0]["traceback"] is None
        assert "ran" not in snippets.own


def test_a_cancel_after_the_end_does_nothing() -> None:
    with Snippets() as snippets:
        evaluation = snippets.new("1")
        evaluation.run_at(sys._getframe(), 0)
        for _ in range(3):
            evaluation.cancel()
        for _ in range(1000):  # an interrupt that is on its way comes at the next turn of a loop
            pass
        assert snippets.done[0]["ok"]


def test_a_signal_handler_of_the_job_that_runs_on_top_of_a_snippet_is_not_ended() -> None:
    saved = []

    def handler(number: int, frame: Any) -> None:
        for _ in range(40):  # a checkpoint before the scheduler takes the machine
            time.sleep(0.01)
        saved.append(number)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with Snippets() as snippets:
            code = "import os, signal\nos.kill(os.getpid(), signal.SIGUSR1)\nwhile True: pass"
            assert snippets.cancelled(code)["cancelled"]
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert saved == [signal.SIGUSR1]


def test_an_endless_repr_is_interrupted() -> None:
    endless = "class Endless(Exception):\n    def __{}__(self):\n        while True: pass\n"
    with Snippets() as snippets:
        assert snippets.cancelled(endless.format("repr") + "Endless()")["cancelled"]
        done = snippets.cancelled(endless.format("str") + "raise Endless()")
        assert "str() failed" in done["error"] or "unprintable" in done["error"]
        endless_cause = endless.format("str") + "try:\n    raise Endless\nexcept Endless:\n    raise SystemExit"
        assert snippets.cancelled(endless_cause)["error"] == "SystemExit"


def test_a_snippet_beside_the_training_is_interrupted_and_the_training_is_not() -> None:
    with Snippets() as snippets:
        evaluation = snippets.new("while True: pass", where="now")
        thread = threading.Thread(target=evaluation.run_now, args=(threading.get_ident(),))
        thread.start()
        until(lambda: evaluation.running, every_s=0.001)
        while not evaluation.done:
            evaluation.cancel()
            time.sleep(0.01)
        thread.join()
        assert snippets.done[0]["cancelled"]


def test_a_snippet_at_a_boundary_is_interrupted_and_the_loop_goes_on() -> None:
    boundary, iterations = Boundary(), 0
    with Snippets() as snippets:
        evaluation = snippets.new("while True: pass")
        boundary.request(lambda frame: evaluation.run_at(frame, 2))
        timer = threading.Timer(0.1, evaluation.cancel)
        timer.start()
        for count in range(1, 6):
            boundary.stepped(count)
            iterations += 1
        timer.join()
        assert snippets.done[0]["cancelled"] and iterations == 5
        assert not boundary.trouble and sys.gettrace() is None
        boundary.close()


def test_a_cancel_as_the_snippet_ends_never_reaches_the_job() -> None:
    outcomes = at_the_edge(AT_THE_EDGE, SECONDS)
    assert not outcomes["leaked"], outcomes
    told = outcomes["ended"] + outcomes["cancelled"]
    assert told >= 200, f"too few to tell: {outcomes}"
    assert min(outcomes["ended"], outcomes["cancelled"]) > told / 10, f"that was not the edge: {outcomes}"


def at_the_edge(number: int, seconds: float) -> Counter[str]:
    """Cancels that come about when the snippet ends, as a time-out that was guessed well."""
    outcomes: Counter[str] = Counter()
    ready: list[Evaluation | None] = []
    go = threading.Semaphore(0)
    chance = random.Random(0)
    typical = 1e-4  # how long a snippet runs until it is cancelled half of the time

    def cancel() -> None:
        while True:
            go.acquire()
            evaluation = ready.pop()
            if evaluation is None:
                return
            end = time.perf_counter() + typical * chance.uniform(0.2, 1.8)
            while time.perf_counter() < end and not evaluation.done:
                pass
            for _ in range(chance.choice((1, 1, 2, 5))):
                evaluation.cancel()

    thread = threading.Thread(target=cancel)
    thread.start()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    gc.disable()  # a callback of the test runner's would be interrupted in the snippet's stead, and reported
    stop = time.monotonic() + seconds
    try:
        with Snippets() as snippets:
            for _ in range(number):
                if time.monotonic() > stop:
                    break
                evaluation = snippets.new("for i in range(1000): pass")
                ready.append(evaluation)
                try:
                    go.release()
                    evaluation.run_at(sys._getframe(), 0)
                    for _ in range(300):  # the job goes on
                        len("job")
                except Cancelled:
                    outcomes["leaked"] += 1
                outcomes["cancelled" if snippets.done[-1]["cancelled"] else "ended"] += 1
                typical *= 1.05 if snippets.done[-1]["cancelled"] else 0.95
                while ready:
                    time.sleep(0)
    finally:
        gc.enable()
        sys.setswitchinterval(interval)
        ready.append(None)
        go.release()
        thread.join()
    return outcomes


def test_a_cancel_as_a_snippet_ends_never_reaches_the_next_snippet() -> None:
    for line in range(14):
        for line_of_cancel in range(10):
            ends_while_cancelled(line, line_of_cancel)


def ends_while_cancelled(line: int, line_of_cancel: int) -> None:
    """The snippet's end waits at this line of interrupt.py, and the cancel at one of its own, for the other one."""
    first, second = Interruptible(), Interruptible()
    ends, cancels, next_runs = threading.Event(), threading.Event(), threading.Event()
    raised: list[BaseException] = []

    def cancel() -> None:
        ends.wait(1)
        sys.settrace(pausing(line_of_cancel, cancels, next_runs))
        try:
            first.cancel()
        except BaseException as error:  # shown below
            raised.append(error)
        finally:
            sys.settrace(None)
            cancels.set()

    def is_over() -> bool:
        next_runs.set()
        while thread.is_alive():
            len("job")
        return True

    thread = threading.Thread(target=cancel)
    thread.start()
    before = sys.gettrace()
    with contextlib.suppress(Cancelled):
        first.run(lambda: sys.settrace(pausing(line, ends, cancels)))
    sys.settrace(before)
    ends.set()
    assert second.run(is_over) and not raised
    thread.join()


def pausing(line: int, reached: threading.Event, go_on: threading.Event) -> Any:
    """A trace function that waits at this line or return, counted from now on, for at most 5 ms."""
    left = [line]

    def trace(frame: Any, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename != Interruptible.run.__code__.co_filename:
            return None
        if event in ("line", "return"):
            left[0] -= 1
            if left[0] == -1:
                reached.set()
                go_on.wait(0.005)
        return trace

    return trace


def test_an_interrupt_that_comes_late_is_caught() -> None:
    """As above, but through run() alone, and with one that is certain to be on its way at the end."""
    for _ in range(200):
        guarded = Interruptible()

        def work(guarded: Interruptible = guarded) -> str:
            thread = threading.Thread(target=guarded.cancel)
            thread.start()
            thread.join()  # set while this stood in C; it comes at one of the next instructions
            return "ended"

        with contextlib.suppress(Cancelled):
            guarded.run(work)
        for _ in range(50):
            len("job")


def test_a_cancel_after_the_snippet_has_ended_raises_nothing() -> None:
    class Late(Interruptible):
        def _leave(self) -> None:
            self.cancel()  # as another thread would, at the worst moment
            super()._leave()

    assert Late().run(lambda: 5) == 5


def test_nothing_is_raised_in_a_thread_that_has_not_been_interrupted() -> None:
    guarded = Interruptible()
    assert guarded.run(lambda: 5) == 5
    guarded.cancel()
    guarded.cancelled = False
    assert guarded.run(lambda: 6) == 6
