"""A traced function takes, gives, raises and tells of itself what it does untraced, and has its code back afterwards.

Standard library only: these tests run on every supported Python (test_every_python.py).
"""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import pickle
import threading
import time
import traceback
import types
import weakref
from collections.abc import Callable
from typing import Any

from traced import Traced, traced

from probe.agent.trace import calls as calls_py


def raised(call: Callable[[], Any]) -> BaseException:
    try:
        call()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def every_kind(a: Any, /, b: Any, c: Any = 3, *rest: Any, d: Any, e: Any = 5, **others: Any) -> Any:
    return a, b, c, rest, d, e, others


def test_every_kind_of_parameter_arrives_and_the_signature_is_as_it_was() -> None:
    before = inspect.signature(every_kind)
    with traced(every_kind) as found:
        assert every_kind(1, 2, d=4) == (1, 2, 3, (), 4, 5, {})
        assert every_kind(1, b=2, d=4, e=6, a=7) == (1, 2, 3, (), 4, 6, {"a": 7})
        assert every_kind(1, 2, 9, 8, 7, d=4) == (1, 2, 9, (8, 7), 4, 5, {})
        assert inspect.signature(every_kind) == before
        code = every_kind.__code__
        assert (code.co_name, code.co_filename) == ("every_kind", __file__)
        assert code.co_firstlineno == found.original.co_firstlineno
        assert pickle.loads(pickle.dumps(every_kind)) is every_kind
        assert len(found.rows) == 3 and not any(found.failed)
        missing = raised(lambda: every_kind(1))
        assert len(found.rows) == 3
    assert str(missing) == str(raised(lambda: every_kind(1)))


def test_parameters_may_have_any_name() -> None:
    """With one keyword and `**`, or with many, names of keywords are constants of the code that passes them on."""

    def fetch(url: str, *, after: Any = None, **others: Any) -> Any:
        return url, after, others

    def ask(*, before: Any = None, **others: Any) -> Any:
        return before, others

    names = ["before", "after", *(f"k{number}" for number in range(20))]
    space: dict[str, Any] = {}
    exec(f"def many(*, {', '.join(names)}): return ({', '.join(names)})", space)
    with traced(fetch) as first, traced(ask) as second, traced(space["many"]) as third:
        assert fetch("/", after=3, page=4) == ("/", 3, {"page": 4})
        assert ask(before=5) == (5, {})
        assert space["many"](**{name: name for name in names}) == tuple(names)
        assert [each.failed for each in (first, second, third)] == [[False]] * 3


def test_defaults_that_change_are_those_of_the_function() -> None:
    def add(a: int, b: int = 1, *, c: int = 1) -> int:
        return a + b + c

    with traced(add):
        add.__defaults__, add.__kwdefaults__ = (10,), {"c": 100}
        assert add(1) == 111


def test_free_variables_are_the_functions_own_and_can_be_rebound() -> None:
    total, unused = 0, []

    def add(more: int) -> int:
        nonlocal total
        total += more
        return len(unused) + total

    with traced(add) as found:
        assert (add(2), add(3)) == (2, 5)
        unused.append(1)
        assert add(0) == 6 and total == 5
        assert len(found.rows) == 3


class Base:
    def __init__(self, value: int) -> None:
        self.value = value

    def get(self, more: int = 0) -> int:
        return self.value + more

    @staticmethod
    def double(value: int) -> int:
        return 2 * value

    @classmethod
    def name(cls) -> str:
        return cls.__name__

    @property
    def squared(self) -> int:
        return self.value**2


class Derived(Base):
    def get(self, more: int = 0) -> int:
        return super().get(more) + 1

    def __private(self, __x: int) -> int:
        return __x

    def call_private(self) -> int:
        return self.__private(3)


def test_methods_of_all_kinds_and_super() -> None:
    members = vars(Base)
    functions = [Derived.get, Base.get, members["double"].__func__, members["name"].__func__, members["squared"].fget,
                 Base.__init__, vars(Derived)["_Derived__private"]]  # fmt: skip
    for function in functions:
        with traced(function, bound=True) as found:
            one = Derived(4)
            assert (one.get(), one.double(2), one.name(), one.squared, one.call_private()) == (5, 4, "Derived", 16, 3)
            assert len(found.rows) == 1


def test_an_exception_passes_through_with_one_frame_of_ours_at_most() -> None:
    error = ValueError("theirs")

    def fail() -> None:
        raise error

    with traced(fail) as found:
        assert raised(fail) is error and error.__context__ is None
        names = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
        assert names.count("fail") == 2 and "before" not in names and "after" not in names
        assert found.failed == [True]


def test_what_returns_is_the_very_object_and_arguments_live_no_longer() -> None:
    class Large:
        pass

    alive: list[bool] = []

    def work(large: Any, *, named: Any) -> Any:
        both = weakref.ref(large), weakref.ref(named)
        del large, named
        alive.append(any(each() is not None for each in both))
        return alive

    work(Large(), named=Large())
    with traced(work, since="anything"):
        given = work(Large(), named=Large())  # not inside an assert, which pytest takes to pieces
    assert given is alive and alive[1] is alive[0]


def test_async_functions_are_measured_to_the_end_of_awaiting() -> None:
    async def inner(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "done"

    async def main() -> None:
        assert await asyncio.gather(inner(0.02), inner(0.04)) == ["done", "done"]
        task = asyncio.ensure_future(inner(60))
        await asyncio.sleep(0.01)
        task.cancel()
        assert isinstance((await asyncio.gather(task, return_exceptions=True))[0], asyncio.CancelledError)

    with traced(inner) as found:
        assert inspect.iscoroutinefunction(inner)
        asyncio.run(main())
        took = [(row["end_ns"] - row["start_ns"]) / 1e9 for row in found.rows]
        assert took[0] >= 0.02 and took[1] >= 0.04 and found.failed == [False, False, True]


def test_generators_are_measured_from_their_first_item_to_their_end() -> None:
    def numbers() -> Any:
        try:
            got = yield 1
            yield got
        except KeyError:
            yield "caught"
        return "end"

    @types.coroutine
    def switch() -> Any:
        return (yield "switched")

    async def uses() -> Any:
        return await switch()

    with traced(numbers) as found:
        generator = numbers()
        assert inspect.isgeneratorfunction(numbers) and not found.rows
        assert (next(generator), generator.send(5)) == (1, 5)
        assert generator.throw(KeyError()) == "caught"
        assert raised(lambda: next(generator)).value == "end"  # type: ignore[attr-defined]
        abandoned = numbers()
        next(abandoned)
        abandoned.close()
        assert found.failed == [False, False]
    with traced(switch.__wrapped__ if hasattr(switch, "__wrapped__") else switch) as found:
        coroutine = uses()
        assert coroutine.send(None) == "switched"
        assert raised(lambda: coroutine.send(7)).value == 7 and len(found.rows) == 1  # type: ignore[attr-defined]


def test_calls_that_are_under_way_when_it_is_taken_off_go_on() -> None:
    async def wait(event: asyncio.Event) -> str:
        await event.wait()
        return "went on"

    def down(n: int, at_the_bottom: Callable[[], None]) -> int:
        if not n:
            at_the_bottom()
            return 0
        return 1 + down(n - 1, at_the_bottom)

    async def main() -> None:
        event = asyncio.Event()
        with traced(wait):
            task = asyncio.ensure_future(wait(event))
            await asyncio.sleep(0)
        event.set()
        assert await task == "went on"

    asyncio.run(main())
    found = Traced(down, "", False)
    original = found.original
    assert down(5, lambda: found.trace.end()) == 5 and down.__code__ is original and not found.rows
    late: list[Traced] = []
    assert down(5, lambda: late.append(Traced(down, "", False))) == 5  # begun meanwhile: it sees whole calls only
    assert late[0].rows == [] and down(2, int) == 2 and len(late[0].rows) == 3
    late[0].trace.end()


def test_a_function_that_is_called_too_often_ends_its_trace_with_the_figure() -> None:
    def often() -> None:
        pass

    with traced(often) as found:
        for _ in range(30_000):
            often()
        assert often.__code__ is found.original and not found.trace.calls.count % 4096
        why = found.trace.why_off
        assert why.startswith("it is called ") and why.endswith("times a second; at most 20,000 are traced")
        assert int(why.split()[3].replace(",", "")) > 20_000


def test_every_call_of_every_thread_has_its_row() -> None:
    def work(name: str) -> str:
        time.sleep(0)
        return name

    with traced(work) as found:
        threads = [threading.Thread(target=lambda: [work("abc") for _ in range(200)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found.rows) == 800 == found.trace.calls.count and {row["size"] for row in found.rows} == {3}


def test_a_copy_in_another_process_calls_nothing_of_ours() -> None:
    def work(value: int) -> int:
        return value + 1

    with traced(work):
        constants = [each for each in work.__code__.co_consts if type(each).__name__ == "Hook"]
        copies = pickle.loads(pickle.dumps(constants))
        assert len(copies) == 2 and [copy(1, 2) for copy in copies] == [None, None]
        assert all("probe" not in copy.__code__.co_filename for copy in copies)


def test_nothing_stays_of_a_function_that_goes_while_it_is_traced() -> None:
    def maker() -> Any:
        def inner(n: int) -> Any:
            return inner if n else None

        return inner

    function = maker()
    found = Traced(function, "", False)
    gone = weakref.ref(function)
    found.trace.end()
    del function, found.trace
    gc.collect()
    assert gone() is None


def test_wrappers_and_lambdas() -> None:
    def decorator(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return wrapper

    @decorator
    def one(value: list[int]) -> int:
        return len(value)

    @decorator
    def other() -> str:
        return "other"

    short = lambda value: value  # noqa: E731
    with traced(one) as found, traced(short) as shorter:
        assert (one([1, 2]), other(), short("x")) == (2, "other", "x")
        assert [row["size"] for row in found.rows] == [2] and len(shorter.rows) == 1
        assert inspect.signature(one).parameters.keys() == {"value"}


def test_a_fault_of_ours_ends_the_trace_and_does_not_reach_the_call() -> None:
    def work() -> str:
        return "unharmed"

    with traced(work) as found:
        found.stream.close()
        assert work() == "unharmed" and work.__code__ is found.original
        assert "fault" in found.trace.why_off


def test_what_a_signal_handler_raises_in_a_hook_reaches_the_call() -> None:
    import signal

    class Stop(Exception):
        pass

    def handler(number: int, frame: Any) -> None:
        raise Stop

    def work() -> None:
        pass

    def interrupted(value: Any) -> int:
        signal.raise_signal(signal.SIGUSR1)
        return -1

    before, reader = signal.signal(signal.SIGUSR1, handler), calls_py.size_reader
    calls_py.size_reader = lambda: interrupted  # type: ignore[assignment]
    try:
        with traced(work):
            assert type(raised(work)) is Stop
    finally:
        calls_py.size_reader = reader
        signal.signal(signal.SIGUSR1, before)


def test_no_cycle_is_left_to_the_garbage_collector() -> None:
    def work() -> None:
        pass

    gc.collect()
    gc.disable()
    try:
        with traced(work) as found:
            work()
            gone = weakref.ref(found.trace), weakref.ref(found.trace.calls), weakref.ref(found.stream)
        del found
        assert [each() for each in gone] == [None, None, None]
    finally:
        gc.enable()
