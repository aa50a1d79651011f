"""The functions that the other taps call where CUDA devices are in use: they wrap theirs and take device times too.

tap.py makes them, and the job's threads call them.
Invariant: the wrapped functions are called whatever happens to the wrappers, and a start time that a wrapper extends
is still an int, because a call in flight may end in a function that knows nothing of devices.
"""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from ....streams import ENGINE, FORWARD, OPTIMIZER
from ...storage.rows import Stream
from ..dynamo import shielded_from_dynamo, unseen
from .clocks import DeviceClocks, started
from .clocks import training_thread_code as clocks_code

Functions = dict[str, Any]


def around_calls(clocks: DeviceClocks) -> Callable[[Functions], Functions]:
    """For Forward: wraps its functions so that they also time the call on the module's device."""
    on, end, ident = clocks.on, clocks.end, get_ident
    entering: dict[int, Any] = {}  # by thread; from before() to clock()
    unseen(*clocks_code)

    def around(functions: Functions) -> Functions:
        host_before, host_clock = functions["_probe_before"], functions["_probe_clock"]
        host_after, host_failed = functions["_probe_after"], functions["_probe_failed"]

        def before(module: Any, args: Any, kwargs: Any) -> int:
            entered: int = host_before(module, args, kwargs)
            entering[ident()] = clocks.begin(module, args, kwargs) if on else None
            return entered

        def clock() -> int:
            begun = entering.pop(ident(), None)
            return started(host_clock(), begun)

        def after(module: Any, start: int, *rest: Any) -> None:
            host_after(module, start, *rest)
            end(start, FORWARD)

        def failed(module: Any, start: int) -> None:
            host_failed(module, start)
            end(start, FORWARD)

        return functions | {
            f"_probe_{function.__name__}": shielded_from_dynamo(function) for function in (before, clock, after, failed)
        }

    return around


def marks_on(
    clocks: DeviceClocks, marks: Stream, host_writer: Callable[..., Callable[[Any], None]]
) -> Callable[[int, int], Callable[[Any], None]]:
    """For Backward: makes the hooks that write a mark so that they also time it on the device."""
    on, ident, clock_of, append = clocks.on, get_ident, clocks.of_serial, marks.append
    report_fault = clocks.report_fault  # a graph that the job keeps holds these hooks: they must not hold the clocks

    def writer(serial: int, kind: int) -> Callable[[Any], None]:
        mark_on_host = host_writer(serial, kind)

        def mark(gradient: Any) -> None:
            clock = clock_of(serial) if on else None
            if clock is None:
                mark_on_host(None)
                return
            try:
                now, thread = perf_counter_ns(), ident()
                append(now, serial, thread, kind)
                clock.mark(now, thread)
            except Exception as error:  # inside a user's backward: no exception may escape
                report_fault(error)

        return mark

    unseen(writer)
    return writer


def passes_on(
    clocks: DeviceClocks, append: Callable[..., Any], wrap_engine: Callable[..., Callable[..., Any]]
) -> Callable[..., Any]:
    """For Backward: replaces the engine by one that also times its passes on the current device."""
    on, ident = clocks.on, get_ident
    under_way: dict[int, list[Any]] = {}  # by thread: where its passes began on a device, innermost last

    def end(start: int, *values: int) -> None:
        append(start, *values)
        clocks.end(started(start, under_way[ident()][-1]), ENGINE)

    engine = wrap_engine(end)

    def _engine_run_backward(*args: Any, **kwargs: Any) -> Any:
        passes = under_way.setdefault(ident(), [])
        passes.append(clocks.begin_here() if on else None)
        try:
            return engine(*args, **kwargs)
        finally:
            passes.pop()
            if not passes:
                under_way.pop(ident(), None)

    unseen(end, _engine_run_backward)
    return _engine_run_backward


def around_steps(clocks: DeviceClocks) -> Callable[[Functions], Functions]:
    """For OptimizerStep: wraps its functions so that they also time a step that runs on the current device."""

    def around(functions: Functions) -> Functions:
        host_clock, host_stepped = functions["_probe_clock"], functions["_probe_stepped"]

        def clock() -> int:
            begun = clocks.begin_here() if clocks.on else None
            return started(host_clock(), begun)

        def stepped(optimizer: Any, start: int) -> None:
            clocks.end(start, OPTIMIZER, optimizer)
            host_stepped(optimizer, start)

        return functions | {
            "_probe_clock": shielded_from_dynamo(clock),
            "_probe_stepped": shielded_from_dynamo(stepped),
        }

    return around
