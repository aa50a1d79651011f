"""Optimizer steps: the code of torch's wrapper around every Optimizer.step is swapped for code that records the step.

Our code runs the original code as a separate function.  So whatever torch.compile made of that code stays valid: a
compiled optimizer is not compiled again when the tap is installed or removed.
Invariant: what the swapped code calls lives in optimizer.py's globals under _probe_* and is never deleted, only made
inert.
"""

from __future__ import annotations

import sys
from _thread import get_ident
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from time import perf_counter_ns
from types import CellType, CodeType, FunctionType
from typing import Any
from weakref import ref

from ...streams import BARE, OPTIMIZER, SPANS, UNTIMED
from ..noop import noop
from .code_around import code_around
from .dynamo import shielded_from_dynamo, skip
from .optimizer_hooks import OptimizerHooks
from .tap import ReportFault, Tap, TapContext

_MOST_INSIDE = 32  # functions inside a `step`
# What is ours it finds by a string: cloudpickle copies the globals that the code names, and a copy has nothing of ours.
_SOURCE = """
def _around(func):
    def wrapper(*args, **kwargs):
        _probe_names = globals()
        _probe_clock, _probe_stepped = _probe_names.get("_probe_clock"), _probe_names.get("_probe_stepped")
        _probe_start = _probe_clock() if _probe_clock else 0
        _probe_own = _probe_function("original", _probe_names, "wrapper", None, (_probe_cell(func),))
        _probe_result = _probe_own(*args, **kwargs)
        if _probe_stepped:
            _probe_stepped(args[0], _probe_start)
        return _probe_result
    return wrapper
"""


class OptimizerStep(Tap):
    """install() and remove() run on any thread, any number of times; steps in flight are not disturbed."""

    name, fallback = "optimizer", OptimizerHooks

    def __init__(self, context: TapContext) -> None:
        """Raises LookupError if torch's code is not known."""
        self._optimizer_py = sys.modules["torch.optim.optimizer"]
        self._class: Any = self._optimizer_py.Optimizer
        self._maker: Any = self._class.profile_hook_step  # wraps the step of a class when its first instance is made
        self._making: CodeType = self._maker.__code__
        original = wrapper_of(self._making)
        if original is None:
            raise LookupError("Optimizer.profile_hook_step makes no known wrapper")
        self._original, self._ours = original, code_around(_SOURCE, original)
        skip(noop.__code__)  # which a step in flight reaches once the tap is gone
        self._timed = [True]
        self._functions = {**_NEEDED, "_probe_stepped": _stepped(context, self._timed, context.reporter(self.name))}
        self._swapped: list[ref[FunctionType]] = []
        self.installed = False

    def install(self) -> None:
        if not self.installed:
            self._optimizer_py.__dict__.update(self._functions)
            self._put(self._original, self._ours)
            self.installed = True

    def switch(self, flags: int, spend: Callable[[int], None] | None = None) -> None:
        """Steps are counted either way."""
        self._timed[:] = [] if flags & (BARE | UNTIMED) else [True]

    def remove(self) -> None:
        if self.installed:
            self._put(self._ours, self._original)
            self._optimizer_py.__dict__.update(_NEEDED, _probe_stepped=noop)  # for steps in flight
            self.installed = False

    def call_around(self, around: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Make the swapped code call the functions that around() makes of its own.  Any thread."""
        self._functions = around(self._functions)
        if self.installed:
            self._optimizer_py.__dict__.update(self._functions)

    def _put(self, old: CodeType, new: CodeType) -> None:
        making = self._making
        constants = tuple(new if constant is self._original else constant for constant in making.co_consts)
        self._maker.__code__ = making if new is self._original else making.replace(co_consts=constants)
        swapped = [function for each in self._swapped if (function := each()) is not None]
        self._swapped.clear()
        for function in (*swapped, *_wrappers(self._class)):  # the job may have put others around some meanwhile
            if function.__code__ is old:
                function.__code__ = new
                self._swapped.append(ref(function))


def wrapper_of(making: CodeType) -> CodeType | None:
    """The code of the wrapper that profile_hook_step puts around each step, if our code can replace it."""
    codes = [constant for constant in making.co_consts if isinstance(constant, CodeType)]
    return next((code for code in codes if code.co_freevars == ("func",) and not code.co_argcount), None)


def _wrappers(base: Any) -> Iterator[FunctionType]:
    """Every function that is `step` in some optimizer class, and the functions inside."""
    todo, seen = [base], {base}
    while todo:
        found = todo.pop()
        new = set(found.__subclasses__()) - seen
        seen |= new
        todo += new
        yield from _inside(vars(found).get("step"))


def _inside(function: Any) -> Iterator[FunctionType]:
    """The function, what it wraps, and what it refers to: some jobs have put a wrapper of their own around torch's."""
    todo, seen = deque([function]), set[int]()
    while todo and len(seen) < _MOST_INSIDE:
        found = todo.popleft()
        if type(found) is FunctionType and id(found) not in seen:
            seen.add(id(found))
            yield found
            todo += _referred(found)
            todo.appendleft(getattr(found, "__wrapped__", None))


def _referred(function: FunctionType) -> list[Any]:
    """Functions that a job's function may call; torch's own call nothing that is wanted here."""
    names = function.__globals__
    if str(dict.get(names, "__name__", "")).startswith("torch."):
        return []
    held = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    held += [dict.get(names, name) for name in function.__code__.co_names]
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # it is empty
            held.append(cell.cell_contents)
    return [each for each in held if type(each) is FunctionType]


def _stepped(context: TapContext, timed: list[bool], report_fault: ReportFault) -> Callable[[Any, int], None]:
    modules = context.modules
    ended: dict[int, tuple[int, int]] = {}  # serial -> thread and end of its last step
    modules.dicts_by_serial.append(ended)

    def stepped(
        optimizer: Any,
        start: int,
        clock: Any = perf_counter_ns,
        id: Any = id,
        serial_of: Any = modules.serials.get,
        timed: list[bool] = timed,
        append: Any = context.streams[SPANS].append,
        ident: Any = get_ident,
        boundary: Any = context.steps.stepped,
        ended: dict[int, tuple[int, int]] = ended,
    ) -> None:
        now = clock()
        try:
            serial = serial_of(id(optimizer)) or modules.meet_optimizer(optimizer)
            thread, (before, end) = ident(), ended.get(serial, (0, 0))
            ended[serial] = thread, now
            if before == thread and start < end:  # a step around one that was recorded, for instance of a subclass
                return
            if timed:
                append(start, now, serial, thread, OPTIMIZER)
            boundary(optimizer, serial, now)
        except Exception as error:  # inside a user's training step: no exception may escape
            report_fault(error)

    made: Callable[[Any, int], None] = shielded_from_dynamo(stepped)
    return made


_NEEDED: dict[str, Any] = {"_probe_clock": perf_counter_ns, "_probe_function": FunctionType, "_probe_cell": CellType}
