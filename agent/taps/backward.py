"""Backward: a mark when autograd reaches a module's output, another when it is through with its input.

A hook dict given to an autograd node costs 0.5 µs, where full_backward_hook costs 33 and inserts nodes of its
own.  The one invariant: a hook that outlives us (a graph may) finds `mark` replaced and does nothing.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any
from weakref import ref

from ...streams import BEGIN, BEGIN_SAME_NODE, END, ENGINE
from ..modules import Modules
from ..rows import Stream

_SPARE = 768  # dummies made ahead: three a module


def _nothing(serial: int, kind: int) -> None:
    """The mark of a tap that is out."""


class Backward:
    """begin() and end() are called by the forward tap around each module call."""

    def __init__(self, marks: Stream, spans: Stream, modules: Modules, trouble: Callable[[str], None]) -> None:
        self._torch = sys.modules["torch"]
        self._marks, self._spans, self._modules, self._trouble = marks, spans, modules, trouble
        self.mark: Callable[[int, int], None] = _nothing
        self.dummies: dict[int, tuple[Any, Any, Any]] = {}  # serial -> carriers of the hooks of each kind of mark
        self._spare: deque[Any] = deque()
        self._engine_homes: list[Any] = [sys.modules["torch.autograd"], sys.modules["torch.autograd.graph"]]
        self._engine = self._engine_homes[1]._engine_run_backward
        self._wrapped_engine = self._wrap_engine()
        self.begin, self.end = self._make_begin_and_end()
        self.installed = False

    def install(self) -> None:
        self.stock()
        self.mark = self._make_mark()
        for home in self._engine_homes:
            if home._engine_run_backward is self._engine:
                home._engine_run_backward = self._wrapped_engine
        self.installed = True

    def remove(self) -> None:
        self.mark = _nothing
        for home in self._engine_homes:
            if home._engine_run_backward is self._wrapped_engine:
                home._engine_run_backward = self._engine
        self.dummies.clear()
        self._spare.clear()
        self.installed = False

    def stock(self) -> None:
        """Make dummies ahead, on the agent's thread: there no user's torch function or dispatch mode is active."""
        while len(self._spare) < _SPARE:
            self._spare.append(self._torch.empty(0))

    def _make_mark(self) -> Callable[[int, int], None]:
        clock, claim, pack_into, buffer = perf_counter_ns, self._marks.claim, self._marks.pack_into, self._marks.buffer
        ident = sys.modules["_thread"].get_ident

        def mark(serial: int, kind: int) -> None:
            offset, seq = claim()
            pack_into(buffer, offset, clock(), serial, ident(), kind, seq)

        return mark

    def _carriers(self, module: Any) -> tuple[Any, Any, Any]:
        """The three dummies of a module; once a module, some 5 µs."""
        serial = self._modules.serials.get(id(module)) or self._modules.meet(module)
        made = self.dummies.get(serial)
        if made is None:
            made = self.dummies[serial] = (
                self._carrier(serial, BEGIN),
                self._carrier(serial, BEGIN_SAME_NODE),
                self._carrier(serial, END),
            )
        return made

    def _carrier(self, serial: int, kind: int) -> Any:
        dummy = self._spare.popleft() if self._spare else self._torch.empty(0)

        def hook(_gradient: Any) -> None:
            try:
                self.mark(serial, kind)
            except Exception as error:  # inside a user's backward: nothing may escape
                self._trouble(f"backward: {error!r}")

        dummy._backward_hooks = {0: hook}
        return dummy

    def _make_begin_and_end(self) -> tuple[Callable[[Any, Any, Any], None], Callable[[Any, Any], Any]]:
        tensor_type, containers = self._torch.Tensor, (tuple, list, dict)
        serials, dummies, carriers, trouble = self._modules.serials, self.dummies, self._carriers, self._trouble

        def nowhere() -> Any:
            return None

        # The last output that got a begin mark, weakly, and its version then: an in-place operation makes a new node.
        latest: Callable[[], Any] = nowhere
        version = 0

        def begin(module: Any, output: Any, node: Any) -> None:
            nonlocal latest, version
            if not isinstance(output, tensor_type):
                if isinstance(output, containers):
                    for value in output.values() if isinstance(output, dict) else output:
                        if isinstance(value, (tensor_type, *containers)):
                            begin(module, value, node)
                return
            made = output.grad_fn
            if made is None or made is node:  # no graph, or the module returned its input: nothing of its own
                return
            carrier = dummies.get(serials.get(id(module), 0)) or carriers(module)
            same_node = latest() is output and output._version == version
            made._register_hook_dict(carrier[same_node])
            latest, version = ref(output), output._version

        def end(module: Any, value: Any) -> Any:
            try:
                if not isinstance(value, tensor_type):
                    return None
                node = value.grad_fn
                # The producer's begin mark on this node is this module's end: no second mark.
                if node is not None and (latest() is not value or value._version != version):
                    carrier = dummies.get(serials.get(id(module), 0)) or carriers(module)
                    node._register_hook_dict(carrier[2])
                return node
            except Exception as error:  # inside a user's forward: nothing may escape
                trouble(f"backward: {error!r}")
                return None

        return begin, end

    def _wrap_engine(self) -> Callable[..., Any]:
        clock, append, engine = perf_counter_ns, self._spans.append, self._engine
        ident, trouble = sys.modules["_thread"].get_ident, self._trouble

        def _engine_run_backward(t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
            start = clock()
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
