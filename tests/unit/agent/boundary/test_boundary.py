"""Requests run between two iterations, in whatever style the loop is written, and nothing stays behind.

Stdlib only: these tests run on every Python that is supported (test_every_python.py).
"""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from probe.agent.boundary.back_edge_trace import BackEdgeTrace
from probe.agent.boundary.boundary import Boundary

STEPS = 6
ASKED = 3  # the iteration in which the request is made


class Job:
    """What a loop under test drives: batches, an optimizer with a post-hook, and a log of what happened when."""

    def __init__(self, asks: bool = False) -> None:
        self.asks = asks
        self.log: list[str] = []
        self.boundary = Boundary()
        self.count = 0
        self.evals: list[str] = []
        self.run: Callable[[FrameType], None] = lambda frame: None

    def batches(self, steps: int = STEPS) -> Batches:
        return Batches(self, steps)

    def step(self) -> None:
        """Optimizer.step and the hooks around it."""
        self.log.append(f"step {self.count}")
        self._post_hook()

    def _post_hook(self) -> None:
        if self.asks and self.count == ASKED - 1:
            self.ask()
        self.count += 1
        self.boundary.stepped(self.count)

    def ask(self, count: int = -1, missed: Callable[[], None] = lambda: None) -> Any:
        def run(frame: FrameType) -> None:
            self.log.append("EVAL")
            self.evals.append(frame.f_code.co_name)
            self.run(frame)

        return self.boundary.request(run, count, missed)

    def end(self) -> None:
        """The last statement of an iteration: gradients are zero, the scheduler has stepped."""
        self.log.append(f"end {self.count - 1}")


class Batches:
    """A loader's iterator: a batch is its number."""

    def __init__(self, job: Job, steps: int) -> None:
        self._job, self._numbers = job, iter(range(steps))

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        number = next(self._numbers)
        self._job.log.append(f"next {number}")
        return number


class Loader(Batches):
    """The same with the tap on its __next__."""

    def __next__(self) -> int:
        self._job.boundary.loading()
        return super().__next__()


# ---- loops, as people write them


def inline(job: Job) -> None:
    for _ in job.batches():
        for _ in range(2):
            pass
        job.step()
        job.end()


def a_call_over_several_lines(job: Job) -> None:
    losses: list[Any] = []

    def train_step(batch: int) -> int:
        job.step()
        return batch

    for batch in job.batches():
        losses.append(
            train_step(
                batch,
            ),
        )
        job.end()


def on_one_line(job: Job) -> None:
    for _ in job.batches(): job.step(), job.end()  # noqa: E701  # fmt: skip


def in_a_comprehension(job: Job) -> None:
    [(job.step(), job.end()) for _ in job.batches()]


def in_a_generator_expression(job: Job) -> None:
    any(job.step() or job.end() for _ in job.batches())


def a_while_with_a_test_that_takes_the_batch(job: Job) -> None:
    batches = job.batches()
    while (batch := next(batches, None)) is not None and batch < STEPS:
        job.step()
        job.end()


def a_while_on_one_line(job: Job) -> None:
    batches = job.batches()
    while next(batches, None) is not None: job.step(), job.end()  # noqa: E701  # fmt: skip


def a_while_with_continue(job: Job) -> None:
    batches = job.batches()
    while next(batches, None) is not None:
        job.step()
        job.end()
        if job.count % 2:
            continue
        len("something else")


def a_while_true(job: Job) -> None:
    batches = job.batches()
    while True:
        if next(batches, None) is None:
            break
        job.step()
        job.end()


def a_try_around_the_step(job: Job) -> None:
    for _ in job.batches():
        try:
            job.step()
            raise MemoryError
        except MemoryError:
            job.end()
            continue


def a_step_in_an_except_clause(job: Job) -> None:
    for _ in job.batches():
        try:
            raise MemoryError
        except MemoryError:
            job.step()
        finally:
            job.end()


def a_with_block(job: Job) -> None:
    for _ in job.batches():
        with threading.Lock():
            job.step()
        job.end()


def epochs(job: Job) -> None:
    for epoch in range(2):
        for _ in job.batches() if epoch == 0 else ():
            job.step()
            job.end()


def an_epoch_is_a_call(job: Job) -> None:
    def train_epoch() -> None:
        for _ in range(ASKED + 1):
            if next(batches, None) is None:
                break
            job.step()
            if job.count != ASKED + 1:
                job.end()

    batches = job.batches()
    for _ in range(2):
        train_epoch()
        if job.count == ASKED + 1:
            job.end()


def a_loop_over_optimizers(job: Job) -> None:
    def other() -> None:
        job.log.append("other")

    for _ in job.batches():
        for optimizer in (job.step, other):
            optimizer()
        job.end()


def the_step_in_the_last_of_several_micro_batches(job: Job) -> None:
    for _ in job.batches():
        for micro in range(3):
            if micro == 2:
                job.step()
        job.end()


def an_inner_loop_left_by_break(job: Job) -> None:
    for _ in job.batches():
        while True:
            try:
                job.step()
                break
            except MemoryError:
                pass
        for _ in range(3):  # a validation
            job.log.append("validate")
        job.end()


def two_places_that_step(job: Job) -> None:
    for batch in job.batches():
        if batch % 2:
            job.step()
        else:
            job.step()
        job.end()


def a_generator_drives(job: Job) -> None:
    def losses() -> Iterator[int]:
        for batch in job.batches():
            job.step()
            yield batch

    for _ in losses():
        job.end()


def losses_of(job: Job) -> Iterator[int]:
    for batch in job.batches():
        job.step()
        yield batch


def a_generator_without_a_closure_drives(job: Job) -> None:
    for _ in losses_of(job):
        job.end()


def a_coroutine_drives(job: Job) -> None:
    async def train_step() -> None:
        job.step()

    async def train() -> None:
        for _ in job.batches():
            await train_step()
            job.end()

    with contextlib.suppress(StopIteration):
        train().send(None)


def a_deep_library(job: Job) -> None:
    """Callbacks around callbacks, as in a trainer that others configure."""

    class Closure:
        def __init__(self, inner: Callable[[], None]) -> None:
            self.inner = inner

        def __call__(self, *args: Any, **kwargs: Any) -> None:
            with threading.Lock():
                for inner in (self.inner,):
                    inner()

    step: Callable[[], None] = job.step
    for _ in range(30):
        step = Closure(step)

    class Fit:
        def run(self) -> None:
            while not self.done():
                self.advance()
                self.on_advance_end()

        def done(self) -> bool:
            return next(batches, None) is None

        def advance(self) -> None:
            step()

        def on_advance_end(self) -> None:
            job.end()

    batches = job.batches()
    Fit().run()


def by_map_in_c(job: Job) -> None:
    def train_step(batch: int) -> None:
        job.step()
        job.end()

    deque(map(train_step, job.batches()), maxlen=0)


def by_map_in_c_over_a_loader(job: Job) -> None:
    def train_step(batch: int) -> None:
        job.step()
        job.end()

    deque(map(train_step, Loader(job, STEPS)), maxlen=0)


def prefetching(job: Job) -> None:
    """The next batch is asked for in the middle of an iteration: that is no boundary."""
    loader = Loader(job, STEPS + 1)
    next(loader)
    for _ in range(STEPS):
        job.step()
        next(loader)
        job.end()


def prefetching_in_a_call(job: Job) -> None:
    def train_step() -> None:
        job.step()
        next(loader)
        job.end()

    loader = Loader(job, STEPS + 1)
    next(loader)
    for _ in range(STEPS):
        train_step()


def very_long(job: Job) -> None:
    """Jumps so far that they need an EXTENDED_ARG."""
    body = "".join(f"        x = {number} + x\n" for number in range(500))
    source = f"def long(job):\n    x = 0\n    for _ in job.batches():\n        job.step()\n{body}        job.end()"
    namespace: dict[str, Any] = {}
    exec(source, namespace)
    namespace["long"](job)


def in_a_module(job: Job) -> None:
    exec("for batch in job.batches():\n    job.step()\n    job.end()", {"job": job})


STYLES = (
    inline, a_call_over_several_lines, on_one_line, in_a_comprehension, in_a_generator_expression,
    a_while_with_a_test_that_takes_the_batch, a_while_on_one_line, a_while_with_continue, a_while_true,
    a_try_around_the_step, a_step_in_an_except_clause, a_with_block, epochs, an_epoch_is_a_call, a_loop_over_optimizers,
    the_step_in_the_last_of_several_micro_batches, an_inner_loop_left_by_break, two_places_that_step,
    a_generator_drives, a_generator_without_a_closure_drives, a_coroutine_drives, a_deep_library,
    by_map_in_c_over_a_loader, prefetching, prefetching_in_a_call, very_long, in_a_module,
)  # fmt: skip
# 3.12 has no event there that would not slow the whole process down: the next batch has been taken.
IMPRECISE = (a_while_on_one_line,) if sys.version_info[:2] == (3, 12) else ()


def finished(style: Callable[[Job], None], job: Job) -> Job:
    """The job, run to its end; nothing of ours is left in its thread."""
    style(job)
    job.boundary.close()
    assert sys.gettrace() is None, f"{style.__name__}: a trace function stays"
    assert not job.boundary.trouble, f"{style.__name__}: {job.boundary.trouble}"
    return job


def around(log: list[str], entry: str = "EVAL") -> list[str]:
    assert log.count(entry) == 1, log
    at = log.index(entry)
    return [log[at - 1], log[at + 1]]


def test_a_request_runs_between_two_iterations_in_every_style() -> None:
    for style in STYLES:
        expected = [f"end {ASKED - 1}", f"next {ASKED}"]
        if style in (prefetching, prefetching_in_a_call):
            expected[1] = f"step {ASKED}"
        if style in IMPRECISE:
            expected = [f"next {ASKED}", f"step {ASKED}"]
        assert around(finished(style, Job(asks=True)).log) == expected, style.__name__


def test_a_loop_in_c_is_recognised_one_step_later() -> None:
    assert around(finished(by_map_in_c, Job(asks=True)).log) == [f"next {ASKED + 1}", f"step {ASKED + 1}"]


def test_a_request_made_in_the_first_step_runs_after_the_second() -> None:
    job = Job()
    job.ask()
    loop_until(job, ASKED - 1)
    assert around(job.log) == ["end 1", "done"]


def loop_until(job: Job, steps: int) -> None:
    for _ in range(steps):
        job.step()
        job.end()
    job.log.append("done")
    job.boundary.close()
    assert not job.boundary.trouble


# ---- which requests run, and when


def test_a_request_for_a_later_step_waits_for_it() -> None:
    job = Job()
    ticket = job.ask(5)
    loop_until(job, 8)
    assert around(job.log) == ["end 4", "step 5"]
    assert ticket.outcome == "run" and not ticket.cancel()


def test_a_request_for_the_very_next_step_runs() -> None:
    job = Job()
    for _ in range(8):
        if job.count == 4:
            job.ask(5)
        job.step()
        job.end()
    assert around(job.log) == ["end 4", "step 5"]


def test_requests_for_one_step_run_in_the_order_that_they_have_on_all_ranks() -> None:
    """One that waits for other ranks, behind another that does so there, would wait for ever."""
    job, ran = Job(), list[str]()
    for order in ("b", "", "c", "a"):
        job.boundary.request(lambda frame, order=order: ran.append(order), 5, order=order)  # type: ignore[misc]
    loop_until(job, 8)
    assert ran == ["", "a", "b", "c"]


def test_a_request_for_a_past_step_is_missed() -> None:
    job = Job()
    told: list[str] = []
    for _ in range(5):
        job.step()
        job.end()
    ticket = job.ask(3, lambda: told.append("missed"))
    job.step()
    assert told == ["missed"] and ticket.outcome == "missed" and ticket.cancel()
    assert not job.evals


def test_a_request_for_a_step_made_within_an_eval_is_missed() -> None:
    job = Job(asks=True)
    told: list[int] = []

    def ten_steps(frame: FrameType) -> None:
        for _ in range(10):
            job.step()

    job.run = ten_steps
    ticket = job.ask(7, lambda: told.append(job.count))
    ticket.run = lambda frame: job.log.append("other EVAL")
    finished(inline, job)
    assert job.log.count("EVAL") == 1 and "other EVAL" not in job.log
    assert told == [14]  # three steps of the loop, ten of the eval, and the one that noticed


def test_steps_within_an_eval_are_no_boundaries() -> None:
    job = Job(asks=True)
    later = []

    def steps(frame: FrameType) -> None:
        later.append(job.boundary.request(lambda frame: job.log.append("second EVAL")))
        for _ in range(3):
            job.step()
            job.end()

    job.run = steps
    finished(inline, job)
    assert around(job.log, "second EVAL") == ["end 6", "next 4"]


def test_a_cancelled_request_never_runs() -> None:
    job = Job()
    ticket = job.ask(4)
    assert ticket.cancel() and ticket.cancel()
    loop_until(job, 2)
    assert "EVAL" not in job.log


def test_only_one_of_cancel_and_run_wins() -> None:
    for _ in range(300):
        ticket = Job().ask()
        won: list[str] = []
        threads = [threading.Thread(target=claim, args=(ticket, name, won)) for name in ("run", "cancelled", "missed")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert won == [ticket.outcome]


def claim(ticket: Any, outcome: str, won: list[str]) -> None:
    if ticket.claim(outcome):
        won.append(outcome)


def test_nothing_runs_after_close() -> None:
    job = Job()
    job.ask(5)
    for _ in range(8):
        job.step()
        if job.count == 5:  # armed: the trace is in
            assert sys.gettrace() is not None
            job.boundary.close()
            assert sys.gettrace() is None
        job.end()
    assert job.boundary.request(lambda frame: job.log.append("EVAL")).outcome == "cancelled"
    assert "EVAL" not in job.log and traces_left(job) == 0


def test_a_waiting_trace_removes_itself_after_close_by_another_thread() -> None:
    job = Job()
    job.ask(5)
    for _ in range(8):
        job.step()
        if job.count == 5:
            closer = threading.Thread(target=job.boundary.close)
            closer.start()
            closer.join()
        job.end()
        if job.count == 6:
            assert sys.gettrace() is None
    assert "EVAL" not in job.log and traces_left(job) == 0


def traces_left(job: Job) -> int:
    """Of all frames of this thread, those in whose f_trace something of this boundary stands."""
    count, frame = 0, sys._getframe(1)
    while frame is not None:
        count += type(frame.f_trace) is BackEdgeTrace or job.boundary.driving_loop.marked(frame)
        frame = frame.f_back  # type: ignore[assignment]
    return count


# ---- the job goes on as without us


def test_an_error_in_a_request_never_reaches_the_loop() -> None:
    job = Job(asks=True)

    def fail(frame: FrameType) -> None:
        raise ValueError("of the request")

    job.run = fail
    job.boundary.request(lambda frame: job.log.append("other EVAL"), ASKED)
    inline(job)
    assert job.log[-1] == f"end {STEPS - 1}" and "other EVAL" in job.log
    assert "of the request" in job.boundary.trouble


def test_marks_are_removed_when_nothing_is_requested() -> None:
    job = Job()
    seen = []
    for _ in range(200):
        job.step()
        seen.append(traces_left(job))
    assert seen[0] and not any(seen[10:20]), seen


class Tensor:
    pass


def test_no_local_is_kept_alive() -> None:
    job = Job(asks=True)
    gone: list[bool] = []

    def train_step() -> None:
        activation = Tensor()
        alive.append(weakref.ref(activation))
        job.step()

    def look(frame: FrameType) -> None:
        frame.f_locals  # noqa: B018  # fills the copy that a frame keeps up to 3.12

    alive: list[Any] = []
    job.run = look
    for _ in range(8):
        loss = Tensor()
        alive.append(weakref.ref(loss))
        train_step()
        del loss
        job.end()
        gone.append(all(ref() is None for ref in alive))
    assert job.evals and all(gone), gone


def test_what_a_function_holds_is_free_once_its_loop_has_ended() -> None:
    for leaves in (False, True):
        job, alive = Job(), list[Any]()
        train_and_end(job, alive, leaves)
        assert job.evals == ([] if leaves else ["train_and_end"]) and is_gone(alive[0]), leaves


def is_gone(reference: Any) -> bool:
    """Up to 3.12, copies of variables are emptied with the next call."""
    return reference() is None


def train_and_end(job: Job, alive: list[Any], leaves: bool) -> None:
    """A request is made in the last step; the loop may be left before it can run."""
    model = Tensor()
    alive.append(weakref.ref(model))
    for _ in range(STEPS):
        if job.count == STEPS - 1:
            job.ask()
        job.step()
        if leaves and job.count == STEPS:
            return
        job.end()


def test_rebinding_a_variable_frees_its_old_object_in_the_next_iteration() -> None:
    job = Job(asks=True)
    alive: list[Any] = []
    free: list[int] = []
    for _ in range(8):
        batch = Tensor()
        free.append(sum(ref() is None for ref in alive))
        alive.append(weakref.ref(batch))
        job.step()
        job.end()
    assert job.evals and free == list(range(8)), free


def test_a_dict_that_the_job_got_from_locals_is_as_the_job_left_it() -> None:
    """Up to 3.12 whatever reads a frame's variables, and each trace event, writes them into that dict."""

    def train(job: Job, rate: float) -> tuple[dict[str, Any], dict[str, Any]]:
        config = locals()
        config["rate"], config["run"] = 0.5, "mine"
        before = dict(config)
        for _ in range(2):
            for _ in range(3):
                job.step()
                assert config == before or job.asks
                job.end()
        return config, before

    for job in (Job(asks=False), Job(asks=True)):
        config, before = train(job, 0.1)
        assert config == before and len(job.evals) == job.asks
    last = Job(asks=True)
    last.count = ASKED - 2 * 3  # so that it asks in its last step, and train() is traced to its end
    config, before = train(last, 0.1)
    last.boundary.stepped(last.count + 1)
    assert config == before


def test_a_loop_that_calls_locals_itself_gets_none_that_are_older() -> None:
    job = Job(asks=True)
    state: dict[str, Any] = {}
    for number in range(6):
        job.step()
        assert not state or state["number"] >= number - 1
        state = locals()
        job.end()
    assert job.evals


def test_counters_of_closures_are_not_rolled_back() -> None:
    """Up to 3.12 the interpreter writes a frame's copy of its locals back after each trace event."""
    job = Job(asks=True)
    n = m = 0

    def count(frame: FrameType) -> None:
        nonlocal n
        n += 100

    def train_step() -> None:
        nonlocal m
        m += 1
        job.step()

    job.run = count
    for _ in range(6):
        train_step()
        job.end()
    assert (n, m) == (100, 6)

    m = n = 0
    again = Job(asks=True)
    again.run = count

    def mapped(batch: int) -> None:
        nonlocal m
        m += 1
        again.step()

    deque(map(mapped, again.batches()), maxlen=0)
    assert (n, m) == (100, 6)


def test_a_debuggers_trace_functions_are_restored() -> None:
    job = Job(asks=True)
    events: list[str] = []

    def debugger(frame: FrameType, event: str, arg: Any) -> Any:
        if frame.f_code is loop.__code__:
            events.append(f"{event} {job.count}")
        return debugger

    def loop() -> None:
        for _ in job.batches():
            job.step()
            job.end()
        assert sys._getframe().f_trace is debugger

    def run(frame: FrameType) -> None:
        job.log.append(f"traced by {sys.gettrace() and sys.gettrace().__name__}")  # type: ignore[union-attr]

    job.run = run
    before = sys.gettrace()
    sys.settrace(debugger)
    try:
        loop()
        after = sys.gettrace()
    finally:
        sys.settrace(before)
    assert after is debugger
    assert "traced by debugger" in job.log
    assert around(job.log) == ["end 2", "traced by debugger"]
    assert f"line {STEPS}" in events and events[-1] == f"return {STEPS}"


def test_a_debugger_that_starts_during_a_trace_is_left_alone() -> None:
    job = Job(asks=True)
    events: list[str] = []

    def debugger(frame: FrameType, event: str, arg: Any) -> Any:
        events.append(event)
        return debugger

    try:
        for _ in range(8):
            job.step()
            if job.count == ASKED:
                assert sys.gettrace() is not None
                sys.settrace(debugger)
                sys._getframe().f_trace = debugger
            job.end()
        assert sys.gettrace() is debugger
    finally:
        sys.settrace(None)
        sys._getframe().f_trace = None
    assert events and "EVAL" in job.log  # a step later


def test_code_called_by_a_request_can_be_traced() -> None:
    """A trace function of a debugger that the snippet starts works: we do not run it as part of a trace."""
    job = Job(asks=True)
    events: list[str] = []

    def tracer(frame: FrameType, event: str, arg: Any) -> Any:
        events.append(event)
        return tracer

    def run(frame: FrameType) -> None:
        sys.settrace(tracer)
        max([1, 2], key=lambda x: x)
        sys.settrace(None)

    job.run = run
    finished(inline, job)
    assert "line" in events


def test_an_idle_step_calls_nothing() -> None:
    boundary, called = Boundary(), list[str]()
    count = 1
    while boundary.stepped(count) <= count + 1:  # until it has learned which loop drives
        count += 1

    def note(frame: FrameType, event: str, argument: object) -> None:
        called.append(f"{event} {getattr(argument, '__name__', frame.f_code.co_name)}")

    sys.setprofile(note)
    boundary.stepped(count + 1)
    sys.setprofile(None)
    assert called == ["call stepped", "return stepped", "c_call setprofile"]
