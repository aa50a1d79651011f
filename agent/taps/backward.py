"""Backward: a mark when autograd reaches a module's output, another when it is through with its input.

A hook dict given to an autograd node costs 0.5 µs, where full_backward_hook costs 33 and inserts nodes of its
own.  Compiled autograd would compile our hooks into its graphs: before its first pass they are emptied and no more
are made.  The one invariant: a graph may outlive us, and its hooks then do nothing (rows.py).
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from ...streams import BEGIN, BEGIN_SAME_NODE, END, ENGINE
from ..modules import Modules
from ..rows import Stream
from .dynamo import shielded_from_dynamo

_SPARE = 768  # dummies made ahead: three a module


class Backward:
    """begin() and end() are called by the forward tap around each module call."""

    def __init__(self, marks: Stream, spans: Stream, modules: Modules, trouble: Callable[[str], None]) -> None:
        self._torch = sys.modules["torch"]
        self._modules, self._trouble = modules, trouble
        self._dummies: dict[int, tuple[Any, Any, Any]] = {}  # serial -> carriers of the hooks of each kind of mark
        modules.forgotten.append(self._dummies)
        self._spare: deque[Any] = deque()
        self.why_not = ""
        self._marks, self._ident = marks, sys.modules["_thread"].get_ident
        self._engine_homes: list[Any] = [sys.modules["torch.autograd"], sys.modules["torch.autograd.graph"]]
        self._engine = self._engine_homes[1]._engine_run_backward
        self._wrapped_engine = self._wrap_engine(spans)
        self.begin, self.end = self._make_begin_and_end()

    def install(self) -> None:
        self.why_not = ""
        self.stock()
        for home in self._engine_homes:
            if home._engine_run_backward is self._engine:
                home._engine_run_backward = self._wrapped_engine

    def remove(self) -> None:
        for home in self._engine_homes:
            if home._engine_run_backward is self._wrapped_engine:
                home._engine_run_backward = self._engine
        self._dummies.clear()
        self._spare.clear()

    def stock(self) -> None:
        """Make dummies ahead, on the agent's thread: there no user's torch function or dispatch mode is active."""
        while len(self._spare) < _SPARE:
            self._spare.append(self._torch.empty(0))

    def _carriers(self, serial: int) -> tuple[Any, Any, Any]:
        """The three dummies of a module; once a module, some 5 µs."""
        begin, same_node, end = (self._carrier(serial, kind) for kind in (BEGIN, BEGIN_SAME_NODE, END))
        made = self._dummies[serial] = (begin, same_node, end)
        return made

    def _carrier(self, serial: int, kind: int) -> Any:
        dummy = self._spare.popleft() if self._spare else self._torch.empty(0)
        hooks = {} if self.why_not else {0: self._marks.writer(perf_counter_ns, serial, self._ident, kind)}
        dummy._backward_hooks = hooks
        return dummy

    def _yield_to_compiled_autograd(self) -> None:
        """On the thread that runs the pass, before it begins: the graph's nodes hold these very dicts."""
        self.why_not = "off: the job uses compiled autograd"
        for carriers in list(self._dummies.values()):
            for dummy in carriers:
                dummy._backward_hooks.clear()

    def _make_begin_and_end(self) -> tuple[Callable[[int, Any, int], None], Callable[[Any, Any], int]]:
        tensor_type, containers = self._torch.Tensor, (tuple, list, dict)
        modules, carriers, trouble = self._modules, self._carriers, self._trouble
        serial_of, carriers_of = modules.serials.get, self._dummies.get
        next_number: Callable[[], int] = self._torch.autograd._get_sequence_nr

        # Autograd numbers the nodes that a thread makes; this is the number of the last output that got a begin mark.
        latest = -1

        def begin(serial: int, output: Any, entered: int) -> None:
            nonlocal latest
            if isinstance(output, tensor_type):
                made = output.grad_fn
                number = -1 if made is None else made._sequence_nr()
                if number < entered:  # no graph, or the module returned what it was given: nothing of its own
                    return
                base = output._base
                if base is not None and _reshaped_inside(output, base, entered):
                    made = base.grad_fn
                carrier = carriers_of(serial) or carriers(serial)
                made._register_hook_dict(carrier[1 if number == latest else 0])
                latest = number
            elif isinstance(output, containers):
                for each in output.values() if isinstance(output, dict) else output:
                    begin(serial, each, entered)

        def end(module: Any, value: Any) -> int:
            try:
                node = value.grad_fn if isinstance(value, tensor_type) else None
                # The producer's begin mark on this node is this module's end: no second mark.
                if node is not None and node._sequence_nr() != latest:
                    serial = serial_of(id(module)) or modules.meet(module)
                    node._register_hook_dict((carriers_of(serial) or carriers(serial))[2])
            except Exception as error:  # inside a user's forward: nothing may escape
                trouble(f"backward: {error!r}")
            return next_number()

        return begin, shielded_from_dynamo(end)

    def _wrap_engine(self, spans: Stream) -> Callable[..., Any]:
        clock, append, engine = perf_counter_ns, spans.append, self._engine
        ident, trouble, modules = self._ident, self._trouble, sys.modules

        def _engine_run_backward(t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
            start = clock()
            compiled = modules.get("torch._dynamo.compiled_autograd")
            if compiled is not None and compiled.compiled_autograd_enabled and not self.why_not:
                self._yield_to_compiled_autograd()
            try:
                return engine(t_outputs, *args, **kwargs)
            finally:
                try:
                    append(start, clock(), 0, ident(), ENGINE)
                except Exception as error:  # inside a user's backward: nothing may escape
                    trouble(f"backward: {error!r}")

        code = _engine_run_backward.__code__
        _engine_run_backward.__code__ = code.replace(co_filename=engine.__code__.co_filename)
        return _engine_run_backward


def _reshaped_inside(output: Any, base: Any, entered: int) -> bool:
    """Is this output a mere reshape of what the module made itself?  (A Linear's is, on input of three dimensions.)

    An in-place operation on a view replaces the view's node, and a mark on it would be lost; the base's stays.
    """
    node = base.grad_fn
    return node is not None and node._sequence_nr() >= entered and bool(base.numel() == output.numel())
