"""Optimizer steps by torch's own global hooks, for a torch whose wrapper of Optimizer.step has unknown code.

An optimizer step that was compiled before the hooks are installed is compiled once more, because dynamo guards the dict
of hooks.
Invariant: torch iterates over its dict of global hooks on the training thread while they run, so the dict changes only
while no other thread can run and none is inside that iteration.
"""

from __future__ import annotations

import sys
from _thread import get_ident
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from ...streams import BARE, OPTIMIZER, SAMPLED, SPANS, UNTIMED
from ..inspect.exclusive import exclusively
from .dynamo import shielded_from_dynamo
from .tap import ReportFault, Tap, TapContext


class OptimizerHooks(Tap):
    """Used instead of OptimizerStep: install() and remove() run on any thread and wait for the job to leave a step."""

    name = "optimizer"

    def __init__(self, context: TapContext) -> None:
        self._optimizer_py = sys.modules["torch.optim.optimizer"]
        self._class: Any = sys.modules["torch.autograd.profiler"].record_function
        self._original = self._class.__enter__, self._class.__exit__
        self._timed: list[bool] = []
        self._hooks, self._ours = _functions(context, context.reporter(self.name), self._timed, *self._original)
        self._handles: list[Any] = []

    @property
    def installed(self) -> bool:
        return bool(self._handles)

    @property
    def state(self) -> str | None:
        if not self.installed:
            return "waiting for the job to leave optimizer.step"
        return "on: hooks, this torch's Optimizer.profile_hook_step is not known"

    def install(self, patience_s: float = 1.0) -> None:
        torch, (pre, post) = self._optimizer_py, self._hooks

        def put() -> None:
            before, after = torch.register_optimizer_step_pre_hook, torch.register_optimizer_step_post_hook
            self._handles = [before(pre), after(post)]

        self.switch(SAMPLED)
        exclusively(put, _iterates_hooks, patience_s)

    def tend(self) -> None:
        if not self.installed:
            self.install(patience_s=0.01)

    def switch(self, flags: int, spend: Callable[[int], None] | None = None) -> None:
        """Steps are counted either way."""
        wanted = not flags & (BARE | UNTIMED)
        if not wanted:
            self._timed.clear()
        old, new = (self._original, self._ours) if wanted else (self._ours, self._original)
        if (self._class.__enter__, self._class.__exit__) == old:
            self._class.__enter__, self._class.__exit__ = new
        if wanted:
            self._timed[:] = [True]

    def remove(self) -> str | None:
        self.switch(BARE)
        if self._handles and not exclusively(self._take, _iterates_hooks):
            return "inert optimizer hooks: the job stands inside optimizer.step"
        return None

    def forget(self) -> None:
        self.switch(BARE)
        self._take()

    def _take(self) -> None:
        while self._handles:
            self._handles.pop().remove()


def _iterates_hooks(code: Any) -> bool:
    """Whether this is the code of Optimizer.profile_hook_step's wrapper, which iterates over the hooks."""
    return bool(code.co_name == "wrapper" and code.co_filename.endswith("torch/optim/optimizer.py"))


def _functions(
    context: TapContext,
    report_fault: ReportFault,
    timed: list[bool],
    enter: Callable[..., Any],
    leave: Callable[..., Any],
) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """The hooks before and after a step, and the record_function around all of it, which itself takes 0.1 ms."""
    clock, ident, append = perf_counter_ns, get_ident, context.streams[SPANS].append
    modules, steps, serials = context.modules, context.steps, context.modules.serials
    opened: dict[int, int] = {}  # thread -> when it entered the step that is about to begin
    starts: dict[int, int] = {}  # id(optimizer) -> start of its running step
    closing: dict[int, tuple[int, int]] = {}  # thread -> start and serial of the step it is about to leave

    def __enter__(self: Any) -> Any:
        if self.name.startswith("Optimizer.step#"):
            opened[ident()] = clock()
        return enter(self)

    def pre(optimizer: Any, args: Any, kwargs: Any) -> None:
        starts[id(optimizer)] = opened.pop(ident(), 0) or clock()

    def post(optimizer: Any, args: Any, kwargs: Any) -> None:
        now = clock()
        try:
            serial = serials.get(id(optimizer)) or modules.meet_optimizer(optimizer)
            start = starts.pop(id(optimizer), 0)
            if start and timed:
                closing[ident()] = start, serial
            if start:  # else torch has put its wrapper around a job's wrapper around its own
                steps.stepped(optimizer, serial, now)
        except Exception as error:  # inside a user's optimizer step: no exception may escape
            report_fault(error)

    def __exit__(self: Any, *error: Any) -> Any:
        try:
            return leave(self, *error)
        finally:
            if closing:
                try:
                    thread = ident()
                    step = closing.pop(thread, None)
                    if step is not None:
                        append(step[0], clock(), step[1], thread, OPTIMIZER)
                except Exception as error:  # as above
                    report_fault(error)

    return (shielded_from_dynamo(pre), shielded_from_dynamo(post)), (__enter__, __exit__)
