"""When operations end on the streams of a device: by events of ours, so that nothing of the job's is held for it.

The kernels of the tap of collectives and its waits call this for backends that time their operations (NCCL).

A Work holds the tensors of its operation, and whoever keeps it keeps a model's activations.  So an event is recorded in
front of each operation, and another one where its end can be seen:
    no Work         it ran on the current stream: behind it
    coalesced       all of a group end together, with the Work of the group
    a Work          on the stream that waits for it, in front of the wait and behind it.  If that stream stood still
                    there, the operation ended with it.  If it did not, the operation had ended at a time unknown,
                    unless the Work says, just before the wait, that it is complete and how long it took
A Work is kept until then only where the job keeps it, too: where torch's C++ waits for it (DDP's reducer, functional
collectives), or as long as a reference of Python's to it is left.
Invariant: in a capture, and on the job's threads while one may be under way, nothing is recorded or queried.
"""

from __future__ import annotations

from _thread import get_ident
from collections import Counter, deque
from contextlib import suppress
from dataclasses import dataclass
from sys import getrefcount
from typing import Any

from ....streams import CAPTURED, END_UNKNOWN
from ...job_signals import raised_by_handler
from ..cuda import Cuda
from .event_stock import EventStock
from .works import Works

_EVENTS = 1024  # of each device
_MOST = 512  # operations that are followed at once
_STOOD_NS = 4_000  # a stream that stood still for less may not have done so at all
_OURS = 2  # references to a Work that nobody else refers to: of its _Operation, and of the call that counts them

Row = tuple[int, int]  # its offset in the ring, and its seq


@dataclass(slots=True, eq=False)
class _Operation:
    """One, or a coalesced group.  first: the event in front of it; work: as long as it is kept."""

    index: int  # of the device
    rows: list[Row]
    first: Any
    work: Any = None
    in_cpp: bool = False  # C++ keeps the Work until it waits for it
    pointer: int = 0  # of the tensor by which a functional collective is waited for
    before: Any = None
    last: Any = None
    is_queued: bool = False  # as its rows say


class DeviceWorks:
    """begin(), issued(), and what a group or a wait begins and ends with run on the job's threads, resolve() on the
    agent's.

    kept: operations with a Work, by its id; empty where no operation runs on a device.
    """

    def __init__(self, works: Works) -> None:
        self.kept: dict[int, _Operation] = {}
        self._own: set[int] = set()  # those that only the job's own references keep
        self._in_cpp: deque[int] = deque(maxlen=_MOST)  # the others, as they were issued
        self._works = works
        self._cuda: Cuda | None = None
        self._tried = False
        self._stock = EventStock(_EVENTS)
        self._pending: deque[_Operation] = deque()
        self._coalescing: dict[int, list[_Operation]] = {}  # by thread

    def _opened(self) -> Cuda | None:
        """At the first operation; None where times cannot be taken safely."""
        if not self._tried:
            self._tried = True
            with suppress(LookupError, OSError, AttributeError):
                self._cuda = Cuda()
        return self._cuda

    # ---- on the job's threads

    def begin(self, index: int | None, row: Row, in_cpp: bool, pointer: int) -> _Operation | None:
        """It is about to be issued; None: into a graph."""
        if self._own:
            self._let_go_of_dropped()
        cuda = self._opened()
        if cuda is not None and cuda.is_capturing():
            return None
        if index is None:
            index = 0 if cuda is None else cuda.current_device()
        group = self._coalescing.get(get_ident())
        first = None if group else self._record(index)
        return _Operation(index, [row], first, None, in_cpp, pointer)

    def issued(self, operation: _Operation | None, row: Row, work: Any) -> None:
        if operation is None:
            self._ended(row, CAPTURED)
            return
        group = self._coalescing.get(get_ident())
        if group is None:
            self._follow(operation, work)
        elif len(group) < _MOST:
            group.append(operation)
        else:
            self._unknown(operation)

    def coalesce(self) -> None:
        """Operations of this thread form a group from now on.  A group that an exception left open is over."""
        for each in self._coalescing.pop(get_ident(), ()):
            self._unknown(each)
        self._coalescing[get_ident()] = []

    def coalesced(self, work: Any) -> None:
        """The group ends here, with this Work, or None."""
        group = self._coalescing.pop(get_ident(), None)
        if group:
            whole = group[0]
            whole.rows = [row for each in group for row in each.rows]
            if self._cuda is not None and self._cuda.is_capturing():
                self._unknown(whole)
            else:
                self._follow(whole, work)

    def before_wait(self, work: Any) -> _Operation | None:
        """A thread is about to have its current stream wait for this Work."""
        operation = self.kept.pop(id(work), None)
        return None if operation is None else self._before(operation)

    def before_wait_for(self, pointer: int) -> _Operation | None:
        """Likewise, for the functional collective of this tensor."""
        for key, operation in list(self.kept.items()):
            if operation.pointer == pointer and self.kept.pop(key, None) is not None:
                return self._before(operation)
        return None

    def behind_wait(self, operation: _Operation) -> None:
        operation.last = self._record(operation.index)
        self._pend(operation)

    def _before(self, operation: _Operation) -> _Operation | None:
        cuda, work, operation.work = self._cuda, operation.work, None
        if cuda is None or cuda.is_capturing():
            self._unknown(operation)
            return None
        operation.before = self._record(operation.index)  # first: what is not complete afterwards ends behind it
        if cuda.aside(work.is_completed):
            self._took(operation, work)
        elif operation.first is not None:
            return operation
        else:
            self._unknown(operation)
        return None

    def _follow(self, operation: _Operation, work: Any) -> None:
        if work is None or self._cuda is None:
            operation.last = self._record(operation.index)
            self._pend(operation)
            return
        while len(self.kept) >= _MOST:
            self._let_go(next(iter(self.kept)))
        operation.work = work
        self.kept[id(work)] = operation
        if operation.in_cpp:
            self._cuda.aside(self._end_oldest)
            self._in_cpp.append(id(work))
        else:
            self._own.add(id(work))

    def _end_oldest(self) -> None:
        """Write the ends of those that C++ waits for, up to the first that has not ended."""
        with suppress(IndexError):  # another thread took the last one
            while self._is_over(self._in_cpp[0]):
                self._in_cpp.popleft()

    def _is_over(self, key: int) -> bool:
        """Whether the Work of this id is complete, or no longer kept.  One of those that see it writes the end."""
        operation = self.kept.get(key)
        work = None if operation is None else operation.work
        if operation is None or work is None:  # a thread waits for it, or has written it
            return True
        if not work.is_completed():
            return False
        if self.kept.pop(key, None) is not None:
            self._took(operation, work)
        return True

    def _pend(self, operation: _Operation) -> None:
        if operation.first is None or operation.last is None or len(self._pending) >= _MOST:
            self._unknown(operation)
        else:
            self._pending.append(operation)

    def _record(self, index: int) -> Any:
        """An event, recorded on the current stream of the device; None if its stock is empty."""
        if self._cuda is None:
            return None
        event = self._stock.take(index, self._cuda.event)
        if event is not None:
            event.record(self._cuda.stream(index))
        return event

    def _let_go_of_dropped(self) -> None:
        for key in list(self._own):
            each = self.kept.get(key)
            if each is None or each.in_cpp:  # a later Work has its id
                self._own.discard(key)
            elif getrefcount(each.work) == _OURS:
                self._let_go(key)

    def _let_go(self, key: int) -> None:
        operation = self.kept.pop(key, None)
        if operation is not None:
            operation.work = None
            self._unknown(operation)

    def _unknown(self, operation: _Operation) -> None:
        for row in operation.rows:
            self._ended(row, END_UNKNOWN)
        self._give_back(operation)

    def _took(self, operation: _Operation, work: Any) -> None:
        """Its Work is complete, and says how long it took, unless it failed."""
        try:
            self._last(operation, int(work._get_duration() * 1e6))
        except RuntimeError as error:  # its events were never reached: its communicator was aborted
            if raised_by_handler(error):
                raise
            self._unknown(operation)
        else:
            self._give_back(operation)

    def _last(self, operation: _Operation, duration_ns: int) -> None:
        for offset, seq in operation.rows:
            self._works.took(offset, seq, duration_ns)

    def _ended(self, row: Row, flag: int) -> None:
        self._works.unseen(*row, flag)

    def _give_back(self, operation: _Operation) -> None:
        self._stock.give_back(operation.index, (operation.first, operation.before, operation.last))

    # ---- on the agent's thread

    def resolve(self) -> None:
        """Write the ends of what has ended."""
        cuda = self._cuda
        if cuda is None:
            return
        entered = -1
        for _ in range(len(self._pending)):
            operation = self._pending.popleft()
            if operation.index != entered:
                cuda.enter(entered := operation.index)
            if not cuda.reached(operation.last):
                self._pending.append(operation)
                continue
            if operation.before is not None and cuda.elapsed_ns(operation.before, operation.last) < _STOOD_NS:
                self._unknown(operation)
                continue
            self._last(operation, cuda.elapsed_ns(operation.first, operation.last))
            self._give_back(operation)
        self._let_go_of_dropped()
        for key, operation in list(self.kept.items()):
            if operation.index != entered:
                cuda.enter(entered := operation.index)
            if operation.first is None or cuda.reached(operation.first):  # torch holds the GIL while it asks a Work
                self._is_over(key)
        for operation in (*list(self._pending)[:1], *list(self.kept.values())[:1]):
            self._look_whether_queued(cuda, operation)
        followed = Counter(each.index for each in (*self._pending, *self.kept.values()))
        self._stock.fill(cuda.event, lambda index: 3 * followed[index])

    def _look_whether_queued(self, cuda: Cuda, operation: _Operation) -> None:
        """Of one that was in flight when this thread looked; where it hangs, the rows then tell what it waits for."""
        if operation.first is None:
            return
        cuda.enter(operation.index)
        is_queued = not cuda.reached(operation.first)
        if is_queued != operation.is_queued:
            operation.is_queued = is_queued
            for row in operation.rows:
                self._works.queued(*row, is_queued)

    def forget(self) -> None:
        """Drop all Works and events."""
        self.keep()

    def keep(self) -> list[Any]:
        """What must never be freed in a forked child, which forgets it."""
        held = [self.kept, self._pending, self._coalescing, self._stock]
        self.kept, self._pending, self._coalescing, self._stock = {}, deque(), {}, EventStock(_EVENTS)
        self._own.clear()
        self._in_cpp.clear()
        return held
