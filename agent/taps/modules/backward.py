"""Backward: one mark when autograd reaches a module's output, another when it has finished with the module's input.

Giving a hook dict to an autograd node costs 0.5 µs; full_backward_hook costs 33 µs and inserts nodes of its own.
Compiled autograd would compile our hooks into its graphs: before its first pass the hook dicts are emptied, and no
more are made.
Invariant: a graph may outlive the tap, and its hooks then do nothing (rows.py).
"""

from __future__ import annotations

import sys
from _thread import get_ident
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter_ns
from typing import Any

from ....streams import BARE, BEGIN, BEGIN_SAME_NODE, END, ENGINE, FAILED, MARKS, SPANS, UNTIMED
from ...noop import noop
from ...storage.rows import Stream
from ..dynamo import unseen
from ..tap import Tap, TapContext
from .autograd_nodes import FEW, IDLE, first_of, held_by, latest_of, least_of, tensors_in

REMEMBERED = 1 << 12  # numbers of autograd nodes: some fifty layers of a transformer; must be a power of two
_LATEST = 64  # hooks kept track of; usually those on the first layers of the graphs that are alive

# Of a module: its serial; the carriers of the hooks for a begin mark, a begin mark on the same node, and an end mark;
# the hook of the end mark.
Carriers = tuple[int, Any, Any, Any, Callable[[Any], None] | None]


class Backward(Tap):
    """What module_calls.py uses to place marks around each module call, and the clock around the passes."""

    name = "backward"

    def __init__(self, context: TapContext) -> None:
        self._torch = sys.modules["torch"]
        modules = self.modules = context.modules
        self.report_fault, self.report_forward_fault = context.reporter("backward"), context.reporter("forward")
        self.carriers: dict[int, Carriers] = {}  # by id, like the serials
        self._behind: dict[int, Any] = {}  # serial -> the carrier of the hooks behind a first node, which change
        modules.dicts_by_id.append(self.carriers)
        modules.dicts_by_serial.append(self._behind)
        self._empty = self._torch.empty(0)  # dummies are copies of it that share its data
        self._handles: deque[Any] = deque(maxlen=_LATEST)  # of hooks behind first nodes; each refers to its node weakly
        self._writers: deque[dict[int, Any]] = deque(maxlen=_LATEST)  # marks that these hooks and first nodes write
        self._marks, self._ident = context.streams[MARKS], get_ident
        self._engine_homes: list[Any] = [sys.modules["torch.autograd"], sys.modules["torch.autograd.graph"]]
        self._engine = self._engine_homes[1]._engine_run_backward
        self._steps, self._sampling = context.steps, context.sampling
        # The number of the node that follows the last pass.  A node before it may be there for as long as the job is,
        # as that of an input that was made outside the loop: with an end mark for each call, it would gather them.
        self.passed = [0]
        self._ends = object()  # a key: another agent has other serials
        self._wrapped_engine = self.wrap_engine(context.streams[SPANS].append)
        self.writer: Callable[[int, int], Callable[[Any], None]] = self.host_writer
        unseen(Backward.make_carriers, Backward._dummies, Backward.host_writer, Stream.writer)
        unseen(
            Backward.end_behind, Backward.another_thread, Backward.is_first_end, _writing, *modules.training_thread_code
        )
        unseen(tensors_in, held_by, latest_of, first_of, least_of)
        # Autograd numbers the nodes that a thread makes.  This list holds the numbers of those that got a begin mark,
        # each at its number modulo REMEMBERED; the last element is the newest number seen.
        self.begun = [-1] * (REMEMBERED + 1)
        self._last_behind = -1  # the number of the last node that got a mark behind it
        self._writers_behind: dict[int, Any] = {}  # and the marks that the hook there writes

    @property
    def state(self) -> str | None:
        return super().state if self.why_off or self._sampling.backward else "off: set backward=off"

    @property
    def ends_steps(self) -> bool:
        return self._steps.by_pass or self._steps.inside_pass

    def install(self) -> None:
        self.why_off = ""
        super().install()

    def switch(self, flags: int, spend: Callable[[int], None] | None = None) -> None:
        """Put the clock around the engine, or take it away."""
        if flags & (BARE | UNTIMED):
            self._swap_engine(self._wrapped_engine, self._engine)
        else:
            self._swap_engine(self._engine, self._wrapped_engine)

    def _swap_engine(self, old: Any, new: Any) -> None:
        for home in self._engine_homes:
            if home._engine_run_backward is old:
                home._engine_run_backward = new

    def remove(self) -> None:
        super().remove()
        self.carriers.clear()
        self._behind.clear()

    def release(self) -> None:
        """Leave nothing to the garbage collector; a call under way finds no number and swallows the error."""
        self.begun.clear()
        self.writer, self._wrapped_engine = lambda serial, kind: noop, self._engine  # for a call that is under way

    def make_carriers(self, module: Any) -> Carriers:
        """The carriers of a module's marks, three dummies, with a function; called once per module, some 7 µs."""
        serial = self.modules.serials.get(id(module)) or self.modules.meet(module)
        begin, same_node, end = dummies = self._dummies()
        for dummy, kind in zip(dummies, (BEGIN, BEGIN_SAME_NODE, END), strict=True):
            dummy._backward_hooks = {} if self.why_off else {0: self.writer(serial, kind)}
        made = self.carriers[id(module)] = (serial, begin, same_node, end, end._backward_hooks.get(0))
        return made

    def _dummies(self) -> Any:
        """Three tensors.  No mode, tracer or transform of the job's sees how they are made: nothing is dispatched."""
        core, empty = self._torch._C, self._empty
        with core.DisableTorchFunction(), core._DisableTorchDispatch():
            return empty.data, empty.data, empty.data

    def host_writer(self, serial: int, kind: int) -> Callable[[Any], None]:
        """A hook that writes a mark; once the stream is closed, it writes nothing."""
        return self._marks.writer(perf_counter_ns, serial, self._ident, kind)

    def time_with(self, writer: Callable[[int, int], Callable[[Any], None]], wrapped: Callable[..., Any]) -> None:
        """Make the hooks of all marks with this writer from here on, and replace the clock around the engine."""
        self.writer = writer
        self.carriers.clear()
        self._swap_engine(self._wrapped_engine, wrapped)
        self._wrapped_engine = wrapped

    def _yield_to_compiled_autograd(self) -> None:
        """Empty all hook dicts, on the thread that runs the pass, before it begins: the nodes hold these very dicts."""
        self.why_off = "the job uses compiled autograd"
        for carriers in list(self.carriers.values()):
            for dummy in carriers[1:4]:
                dummy._backward_hooks.clear()
        with suppress(IndexError):  # another thread is at it, too
            while self._writers:
                self._writers.pop().clear()
            while self._handles:
                self._handles.pop().remove()
        self.carriers.clear()  # carriers made from here on have no hooks

    def another_thread(self) -> None:
        """Forget all numbers, because another thread numbers its nodes from the start."""
        self.begun[:], self._last_behind = [-1] * len(self.begun), -1

    def is_first_end(self, serial: int, node: Any) -> bool:
        """Whether this node, which may be older than the last pass, has no end mark of this module yet."""
        marked = node.metadata.setdefault(self._ends, set())  # torch keeps it for anomalies, as long as the node
        if serial in marked:
            return False
        marked.add(serial)
        return True

    def end_behind(self, carriers: Carriers, node: Any, number: int, entered: int) -> None:
        """Mark behind the first node of a module's graph.  Most need no hook of torch's there, which is expensive."""
        serial, write = carriers[0], carriers[4]
        if write is None:
            return
        if entered == self._last_behind:  # a call around the last module: its graph begins with the same node
            self._writers_behind[len(self._writers_behind)] = write
        elif number - entered < FEW:
            self._last_behind, self._writers_behind = entered, {0: write}
            self._writers.append(self._writers_behind)
            first = first_of(node, entered)
            if type(first).__name__ in IDLE:
                carrier = self._behind.get(serial)
                if carrier is None:
                    carrier = self._behind[serial] = self._dummies()[0]
                carrier._backward_hooks = self._writers_behind
                first._register_hook_dict(carrier)
            else:
                self._handles.append(first.register_hook(_writing(self._writers_behind)))

    def wrap_engine(self, append: Callable[..., Any]) -> Callable[..., Any]:
        """The engine with a clock around it; append() writes the row of a pass, on the thread that ran it."""
        clock, engine = perf_counter_ns, self._engine
        ident, report_fault, steps, modules = self._ident, self.report_fault, self._steps, sys.modules
        samples, passed, next_number = steps.samples, self.passed, self._torch.autograd._get_sequence_nr

        def _engine_run_backward(t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
            trains = kwargs.get("accumulate_grad")  # not for autograd.grad(), which models call in their forward
            if trains:
                samples.pass_begins(*args[1:2])  # retain_graph
            flags, start = ENGINE, clock()
            compiled = modules.get("torch._dynamo.compiled_autograd")  # another thread may just be importing it
            if getattr(compiled, "compiled_autograd_enabled", False) and not self.why_off:
                self._yield_to_compiled_autograd()
            try:
                return engine(t_outputs, *args, **kwargs)
            except BaseException:
                flags = ENGINE | FAILED
                raise
            finally:
                try:
                    now = clock()
                    passed[0] = next_number()
                    append(start, now, 0, ident(), flags)
                    if trains and samples.pass_ends():
                        steps.passed(now)
                except Exception as error:  # inside a user's backward: no exception may escape
                    report_fault(error)

        unseen(_engine_run_backward)
        return _engine_run_backward


def _writing(writers: dict[int, Callable[[Any], None]]) -> Callable[[Any, Any], None]:
    """A hook behind a node that writes these marks, that of the innermost module first."""

    def hook(gradients_in: Any, gradients_out: Any) -> None:
        for write in writers.values():
            write(None)

    return hook
