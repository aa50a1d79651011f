"""Batches: the wait in a DataLoader's __next__, and the number of batches ready; its entry is a boundary for C loops.
The making of an iterator, in a DataLoader's __iter__, has a row, too.

This works on loops that are already running, because the methods are swapped on the classes of all loaders.
Invariant: the job gets what torch's own methods return or raise.
"""

from __future__ import annotations

import sys
from _thread import get_ident
from collections.abc import Callable
from time import monotonic, perf_counter_ns
from typing import Any

from ...protocol import NO_LOADERS
from ...streams import BARE, FAILED, ITERATOR, LOADS
from ..job_signals import raised_by_handler
from ..names.modules import Modules
from ..names.namespace import attributes
from ..names.trainer_names import trainer_name
from ..names.variable_names import readable, variable_name
from .tap import ReportFault, Tap, TapContext

_TO_THE_JOB = 4  # frames from _name() to the frame that takes the batch, or makes the iterator
_WRAPPER = "DataLoaderAdapter"  # accelerate's, which stands for the loader inside
_SEARCHES = 64  # searches for names at once, at 0.1 ms each, and one more a second: a job may keep making loaders


class Loader(Tap):
    """Swaps __next__ on the class of all iterators, and __iter__ on that of all loaders."""

    name, off_after = "loader", ("loader",)

    def __init__(self, context: TapContext) -> None:
        dataloader_py = sys.modules.get("torch.utils.data.dataloader")
        iterator_class: Any = getattr(dataloader_py, "_BaseDataLoaderIter", None)
        self._swaps: list[tuple[Any, str, Any, Any]] = []
        if iterator_class is None:
            return
        loader_class = dataloader_py.DataLoader  # type: ignore[union-attr]
        of_torch = iterator_class.__next__, loader_class.__iter__
        known = context, Loaders(context.modules, loader_class).serial, context.reporter(self.name)
        self._swaps = [
            (iterator_class, "__next__", of_torch[0], _wrap(of_torch[0], *known)),
            (loader_class, "__iter__", of_torch[1], _wrap_iter(of_torch[1], *known, iterator_class)),
        ]

    @property
    def state(self) -> str | None:
        if self._swaps:
            return super().state
        has_loaders = "torch.utils.data.dataloader" in sys.modules
        return "off: torch.utils.data had no loaders at the attach" if has_loaders else NO_LOADERS

    def switch(self, flags: int, spend: Callable[[int], None] | None = None) -> None:
        for owner, name, original, wrapped in self._swaps:
            old, new = (wrapped, original) if flags & BARE else (original, wrapped)
            if getattr(owner, name) is old:
                setattr(owner, name, new)


class Loaders:
    """serial(), on the thread that takes a batch, gives the loader's number; the first batch registers and names it.

    An iterator does not refer to its loader, but to the loader's sampler, which lives as long as the loader.
    """

    def __init__(self, modules: Modules, loader_type: Any) -> None:
        self._modules, self._type = modules, loader_type
        self._serial_of = modules.serials.get
        self._search_s = 0.0  # up to when searches are paid for, at one a second; at most 64 are saved up
        self._unnamed: set[int] = set()
        self._workers: dict[int, Any] = {}  # of each serial: how it loads
        modules.dicts_by_serial.append(self._workers)

    def serial(self, iterator: Any, is_new: bool = False) -> int:
        """is_new: the iterator has just been made, maybe with other workers than the one before."""
        sampler = iterator._index_sampler
        serial = self._serial_of(id(sampler)) or self._serial_of(id(iterator))
        before = serial or 0
        if serial is None or (is_new and self._workers.get(serial) != _workers(iterator)):
            fields = _fields(iterator, sampler, self._type.__name__)
            try:
                serial = self._modules.meet_loader(sampler, fields)
            except TypeError:  # a list of batches cannot be referenced weakly
                serial = self._modules.meet_loader(iterator, fields)
            self._unnamed.add(serial)
            self._workers.pop(before, None)
            self._workers[serial] = _workers(iterator)
        if self._unnamed and serial in self._unnamed and readable():
            if not is_new:  # a variable will hold the iterator only when it is used
                self._unnamed.discard(serial)
            if self._search_s <= (now := monotonic()) - 1:
                self._search_s = max(self._search_s, now - _SEARCHES) + 1
                self._name(serial, iterator, sampler)
        return serial

    def _name(self, serial: int, iterator: Any, sampler: Any) -> None:
        def is_loader(value: Any) -> bool:  # a function that called itself would be a cycle
            if self._type not in type(value).__mro__:
                return False
            held = value.__dict__
            return held.get("batch_sampler") is sampler or held.get("sampler") is sampler

        def is_wrapper(value: Any) -> bool:  # looked for first: the loader that was wrapped may have the same sampler
            is_one = any(each.__name__ == _WRAPPER for each in type(value).__mro__)
            return is_one and is_loader(dict(attributes(value)).get("base_dataloader"))

        try:
            frame = sys._getframe(_TO_THE_JOB)
            tests = is_wrapper, is_loader, lambda value: value is iterator
            name = trainer_name(frame, is_loader) or variable_name(frame, *tests)
        except Exception as error:  # a strange variable is no reason to lose the batches
            if raised_by_handler(error):
                raise
            name = None
        if name is not None:
            self._unnamed.discard(serial)
            self._modules.log_loader(serial, _fields(iterator, sampler, name))


def _fields(iterator: Any, sampler: Any, name: str) -> dict[str, Any]:
    size = dict(attributes(sampler)).get("batch_size") if iterator._auto_collation else None
    return {
        "name": name,
        **_workers(iterator),
        "batch_size": size if type(size) is int else None,
    }


def _workers(iterator: Any) -> dict[str, Any]:
    return {
        "num_workers": int(iterator._num_workers),
        "pin_memory": bool(iterator._pin_memory),
        "prefetch_factor": getattr(iterator, "_prefetch_factor", None),
    }


def _wrap(original: Any, context: TapContext, serial_of: Callable[[Any], int], report_fault: ReportFault) -> Any:
    clock, ident, append = perf_counter_ns, get_ident, context.streams[LOADS].append
    loading, taken = context.boundary.loading, context.steps.samples.batch_taken

    def record(iterator: Any, start: int, ready: int, outstanding: int, flags: int) -> None:
        end = clock()
        try:
            taken()
            append(start, end, serial_of(iterator), ready, outstanding, ident(), flags)
        except Exception as error:  # the batch is the user's: no exception may escape
            report_fault(error)

    def __next__(self: Any) -> Any:
        loading()
        ready, outstanding = _batches_ready(self)
        start = clock()
        try:
            batch = original(self)
        except StopIteration:
            raise
        except BaseException:
            record(self, start, ready, outstanding, FAILED)
            raise
        record(self, start, ready, outstanding, 0)
        return batch

    return __next__


def _wrap_iter(
    original: Any, context: TapContext, serial_of: Callable[..., int], report_fault: ReportFault, of_torch: Any
) -> Any:
    clock, ident, append = perf_counter_ns, get_ident, context.streams[LOADS].append

    def record(iterator: Any, start: int) -> None:
        end = clock()
        try:
            if of_torch in type(iterator).__mro__:
                append(start, end, serial_of(iterator, True), -1, -1, ident(), ITERATOR)
        except Exception as error:  # the iterator is the user's: no exception may escape
            report_fault(error)

    def __iter__(self: Any) -> Any:
        start = clock()
        iterator = original(self)
        record(iterator, start)
        return iterator

    return __iter__


def _batches_ready(iterator: Any) -> tuple[int, int]:
    """(batches that are ready, batches requested and not taken yet), -1 where unknown; takes no lock.

    Batches that came out of order are kept with the tasks; those in order are in the queue, or in the queue after the
    pinning thread.
    """
    tasks = getattr(iterator, "_task_info", None)
    if tasks is None:
        return -1, -1
    try:
        early = len(tasks) - iterator._tasks_outstanding
        queue = iterator._data_queue
        waiting = len(queue.queue) if hasattr(queue, "queue") else queue.qsize()
    except Exception as error:  # a torch that stores them differently, or a platform that cannot count them
        if raised_by_handler(error):
            raise
        return -1, len(tasks)
    return early + waiting, len(tasks)
