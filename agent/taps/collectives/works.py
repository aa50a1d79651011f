"""When operations end: a future's callback reports it, or the agent polls the Work; either patches the row in place.

The kernels of the tap of collectives and its waits call this.

A caller that waits at once uses Work.wait in Python, so an operation that is not async ends there.  Among the others,
gloo's send, recv and reduce_scatter have no future.  Send and recv complete only in wait().  Reduce_scatter never
reports completion: it ends when Work.wait returns in Python or, if C++ waits for it, when a later operation of its
group has ended: by then every rank has issued it, so the job cannot be hanging in it.  The works of MPI and UCC are
asked after a wait, too: UCC's on a device has only put the operation on a stream.
Invariant: a row is patched only while its slot in the ring still holds it, and whatever a Work or a closed stream
answers, nothing is raised into gloo's threads or the caller's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from mmap import mmap
from struct import Struct
from sys import getrefcount
from time import monotonic, perf_counter_ns, sleep
from typing import Any

from ....streams import COLLECTIVES, END_UNKNOWN, FAILED, QUEUED, STREAMS
from ...job_signals import raised_by_handler

_SLOT = Struct("<q")
_AT = {name: 8 * place for place, name in enumerate(STREAMS[COLLECTIVES])}
_START, _DONE, _NUMBER = _AT["start_ns"], _AT["done_ns"], _AT["group_seq"]
_GROUP, _FLAGS, _SEQ = _AT["group"], _AT["flags"], _AT["seq"]
# Polled works keep their tensors alive; this is far more than any job has in flight at once.
_MAX_POLLED = 1024
# Completed futures whose value is checked later: in gloo's thread each check would cost the job 14 µs.  They keep their
# tensors alive for up to a second, so only the last few are kept: after a failure few other operations follow.
_MAX_UNCHECKED = 4
_DROPPED_NS = 1_000_000_000
_ALONE = 2  # references to a Work that only we have: of its _PolledWork, and of the call that counts them
_OURS = 3  # references to a callback that no future has: of _callbacks, of its kernel, and of the call that counts them


@dataclass
class _PolledWork:
    offset: int
    seq: int
    work: Any
    ends_in_wait: bool
    blocking: bool
    alone_ns: int = 0  # since when only we are known to have the work


class Works:
    """Futures call future_done(); poll_later() takes works without a future, and poll() polls them.  Any thread."""

    def __init__(self, buffer: mmap) -> None:
        self._buffer = buffer
        self._polled: deque[_PolledWork] = deque(maxlen=_MAX_POLLED)
        self._unchecked: deque[tuple[int, int, Any]] = deque(maxlen=_MAX_UNCHECKED)
        self._last_done: dict[int, tuple[int, int]] = {}  # group -> seq and end of the latest row known to be done
        self._callbacks: list[Callable[[int, int, Any], None]] = []

    def done(self, offset: int, seq: int, at: int) -> None:
        if self._get(offset + _SEQ) == seq:  # else the ring has overwritten the row
            _SLOT.pack_into(self._buffer, offset + _DONE, at)

    def took(self, offset: int, seq: int, duration_ns: int) -> None:
        self.done(offset, seq, self._get(offset + _START) + duration_ns)

    def unseen(self, offset: int, seq: int, flag: int) -> None:
        """CAPTURED or END_UNKNOWN."""
        if self._get(offset + _SEQ) == seq:
            self._set(offset, flag)
            self.done(offset, seq, perf_counter_ns())

    def queued(self, offset: int, seq: int, is_queued: bool) -> None:
        """Whether the device has still to come to it."""
        if self._get(offset + _SEQ) == seq:
            self._set(offset, QUEUED, is_queued)

    def failed(self, offset: int, seq: int) -> None:
        if self._get(offset + _SEQ) == seq:
            self._set(offset, FAILED)

    def raised(self, offset: int, seq: int) -> None:
        """The issue has just raised."""
        with suppress(ValueError):  # the stream was closed in the meantime
            self.failed(offset, seq)
            self.done(offset, seq, perf_counter_ns())

    def callback(self) -> Callable[[int, int, Any], None]:
        """future_done() for the futures of one kernel, which keeps it; futures drop it once they have called it."""
        self._callbacks.append(self.future_done)
        return self._callbacks[-1]

    def await_callbacks(self, patience_s: float) -> None:
        """Wait until no future will call, or for so long."""
        end, held = monotonic() + patience_s, self._callbacks
        while any(getrefcount(held[at]) > _OURS for at in range(len(held))) and monotonic() < end:
            sleep(0.001)

    def future_done(self, offset: int, seq: int, future: Any) -> None:
        at = perf_counter_ns()
        try:  # on gloo's thread: suppress() would take as long as all of this
            self._succeeded(offset, seq, at)
            self._unchecked.append((offset, seq, future))
        except ValueError:  # the stream was closed in the meantime
            pass

    def _succeeded(self, offset: int, seq: int, at: int) -> None:
        self.done(offset, seq, at)
        self._last_done[self._get(offset + _GROUP)] = (seq, at)

    def poll_later(self, offset: int, seq: int, work: Any, ends_in_wait: bool, blocking: bool) -> None:
        while self._polled and self._ended(self._polled[0]):
            self._polled.popleft()
        self._polled.append(_PolledWork(offset, seq, work, ends_in_wait, blocking))

    def poll(self) -> None:
        """Find out which polled works are done, and which of the completed futures have failed."""
        with suppress(IndexError):  # another thread took the last one
            for _ in range(len(self._unchecked)):
                self._check(*self._unchecked.popleft())
            for _ in range(len(self._polled)):
                polled = self._polled.popleft()
                if not self._ended(polled) and not self._was_dropped(polled):
                    self._polled.append(polled)

    def give_up(self) -> None:
        """Drop all works without polling them, and clear their rows, whose end will never be known."""
        with suppress(IndexError):  # none is left
            while True:
                polled = self._polled.popleft()
                if self._get(polled.offset + _SEQ) == polled.seq:
                    _SLOT.pack_into(self._buffer, polled.offset + _SEQ, 0)
        self._unchecked.clear()

    def forget(self) -> None:
        """Drop all works without polling them, as a forked child must."""
        self._polled.clear()
        self._unchecked.clear()
        self._callbacks.clear()

    def _set(self, offset: int, flag: int, wanted: bool = True) -> None:
        """A flag of a row, in one piece: pack_into() would first put zeros there, which a reader might see."""
        flags, at = self._get(offset + _FLAGS) & ~flag, offset + _FLAGS
        self._buffer[at : at + _SLOT.size] = _SLOT.pack(flags | flag * wanted)

    def _get(self, at: int) -> int:
        value: int = _SLOT.unpack_from(self._buffer, at)[0]
        return value

    def _check(self, offset: int, seq: int, future: Any) -> None:
        """Mark the row of a failed future: value() raises if the operation failed, and no cheaper check exists."""
        try:
            future.value()
        except Exception:  # whatever the backend raises, the operation failed
            self.failed(offset, seq)

    def _was_dropped(self, polled: _PolledWork) -> bool:
        """Whether nobody can wait for a send or receive any more: its tensors are the job's to free.

        For a moment after the issue only C++ has it.
        """
        now = perf_counter_ns()
        if getrefcount(polled.work) > _ALONE or self._get(polled.offset + _NUMBER) >= 0:
            polled.alone_ns = 0
        elif not polled.alone_ns:
            polled.alone_ns = now
        elif now - polled.alone_ns > _DROPPED_NS:
            self.unseen(polled.offset, polled.seq, END_UNKNOWN)
            return True
        return False

    def _ended(self, polled: _PolledWork) -> bool:
        """Whether this work needs no more polling.  is_success() is not used: it would warn in the job's stderr."""
        offset = polled.offset
        try:
            at = perf_counter_ns()
            if not polled.work.is_completed():
                later, at = self._last_done.get(self._get(offset + _GROUP), (0, 0))
                if not polled.ends_in_wait or later < polled.seq or self._get(offset + _NUMBER) < 0:
                    return False
            self.done(offset, polled.seq, at)
        except Exception as error:  # an aborted communicator, a closed stream: the row stays as it is
            if raised_by_handler(error):
                raise
            return True
        return True

    def waited(self, work: Any, at: int, failed: bool) -> bool:
        """A wait for this work has just returned or raised; True if the operation's own row covers the wait."""
        in_row = False
        for polled in list(self._polled) if self._polled else ():
            if polled.work is work and (polled.ends_in_wait or (not failed and _is_completed(work))):
                try:
                    self._polled.remove(polled)
                except ValueError:  # another thread handled it first
                    continue
                if failed:
                    self.failed(polled.offset, polled.seq)
                    self.done(polled.offset, polled.seq, at)
                else:
                    self._succeeded(polled.offset, polled.seq, at)
                in_row = in_row or polled.blocking
        return in_row


def _is_completed(work: Any) -> bool:
    try:
        return bool(work.is_completed())
    except Exception as error:  # as in Works._ended()
        if raised_by_handler(error):
            raise
        return False
