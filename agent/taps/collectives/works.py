"""When operations end: told by their future, or asked of their Work; written into their row in place.

Fed by the tap of collectives and by its waits.  The one invariant: a row is patched only while its place still
holds it, and whatever a Work or a closed stream answers, nothing is raised into gloo's threads or the caller's.

Who waits at once does so by Work.wait in Python, so an operation that is not async ends there.  Of the others
gloo's send, recv and reduce_scatter have no future.  The first two complete in wait() only, the last never
says so: it ends when Work.wait returns in Python, or, waited for in C++, when a later operation of its group
has: by then every rank has issued it, so it is not what a job hangs in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from mmap import mmap
from struct import Struct
from time import perf_counter_ns
from typing import Any

from ....streams import COLLECTIVES, FAILED, STREAMS

_SLOT = Struct("<q")
_AT = {name: 8 * place for place, name in enumerate(STREAMS[COLLECTIVES])}
_START, _DONE, _NUMBER = _AT["start_ns"], _AT["done_ns"], _AT["group_seq"]
_GROUP, _FLAGS, _SEQ = _AT["group"], _AT["flags"], _AT["seq"]
# Works that are asked keep their tensors alive; far more than any job has in flight at once.
_HELD = 1024
# Futures told done whose value is looked at later: in gloo's thread that would cost the job 14 µs each.  They
# keep their tensors alive for up to a second, so only the last few: after a failure little else comes.
_UNPROVEN = 4


@dataclass(frozen=True)
class _Asked:
    offset: int
    seq: int
    work: Any
    timed: bool  # it knows how long its device took
    ends_in_wait: bool
    blocking: bool


class Works:
    """told() is what futures call; ask() takes the works that have none; poll() asks them.  Any thread."""

    def __init__(self, buffer: mmap, is_capturing: Callable[[], bool]) -> None:
        self._buffer = buffer
        self._is_capturing = is_capturing
        self._asked: deque[_Asked] = deque(maxlen=_HELD)
        self._unproven: deque[tuple[int, int, Any]] = deque(maxlen=_UNPROVEN)
        self._told_last: dict[int, tuple[int, int]] = {}  # group -> seq and end of the latest row told done

    def done(self, offset: int, seq: int, at: int) -> None:
        if self._get(offset + _SEQ) == seq:  # else the ring came round
            _SLOT.pack_into(self._buffer, offset + _DONE, at)

    def failed(self, offset: int, seq: int) -> None:
        if self._get(offset + _SEQ) == seq:
            _SLOT.pack_into(self._buffer, offset + _FLAGS, self._get(offset + _FLAGS) | FAILED)

    def told(self, offset: int, seq: int, future: Any) -> None:
        at = perf_counter_ns()
        try:
            self._succeeded(offset, seq, at)
            self._unproven.append((offset, seq, future))
        except ValueError:  # the stream was closed meanwhile
            pass

    def _succeeded(self, offset: int, seq: int, at: int) -> None:
        self.done(offset, seq, at)
        self._told_last[self._get(offset + _GROUP)] = (seq, at)

    def ask(self, offset: int, seq: int, work: Any, timed: bool, ends_in_wait: bool, blocking: bool) -> None:
        if timed and self._is_capturing():  # into a CUDA graph: it never completes and must not be asked
            self.done(offset, seq, perf_counter_ns())
            return
        while self._asked and self._ended(self._asked[0]):
            self._asked.popleft()  # so that few works of a device, which end in order, are ever held
        self._asked.append(_Asked(offset, seq, work, timed, ends_in_wait, blocking))

    def poll(self) -> None:
        """See which of the asked works are done, and which of those told done have failed."""
        self._prove()
        for _ in range(len(self._asked)):
            try:
                asked = self._asked.popleft()
            except IndexError:  # another thread polls too
                return
            if not self._ended(asked):
                self._asked.append(asked)

    def give_up(self) -> None:
        """Let go of all works without asking them, and take back their rows, whose end will never be known."""
        with suppress(IndexError):  # once there are none
            while True:
                asked = self._asked.popleft()
                if self._get(asked.offset + _SEQ) == asked.seq:
                    _SLOT.pack_into(self._buffer, asked.offset + _SEQ, 0)
        self.forget()

    def forget(self) -> None:
        """Let go of all works without asking them, as a forked child must."""
        self._asked.clear()
        self._unproven.clear()

    def _get(self, at: int) -> int:
        value: int = _SLOT.unpack_from(self._buffer, at)[0]
        return value

    def _prove(self) -> None:
        """A future's value raises if its operation failed; there is no cheaper way to know."""
        for _ in range(len(self._unproven)):
            try:
                offset, seq, future = self._unproven.popleft()
            except IndexError:  # another thread polls too
                return
            try:
                future.value()
            except Exception:  # whatever the backend raises, the operation failed
                self.failed(offset, seq)

    def _ended(self, asked: _Asked) -> bool:
        """Whether there is nothing more to ask this work; is_success() would warn in the job's stderr."""
        offset = asked.offset
        try:
            at = perf_counter_ns()
            if not asked.work.is_completed():
                later, at = self._told_last.get(self._get(offset + _GROUP), (0, 0))
                if not asked.ends_in_wait or later < asked.seq or self._get(offset + _NUMBER) < 0:
                    return False
            elif asked.timed:
                at = self._get(offset + _START) + int(asked.work._get_duration() * 1e6)
            self.done(offset, asked.seq, at)
        except Exception:  # an aborted communicator, a closed stream: the row stays as it is
            return True
        return True

    def waited(self, work: Any, at: int, failed: bool) -> bool:
        """wait() of some work has just returned or raised; whether from start to end is in the operation's own row."""
        told = False
        for asked in list(self._asked) if self._asked else ():
            if asked.work is work and asked.ends_in_wait:
                try:
                    self._asked.remove(asked)
                except ValueError:  # another thread saw it first
                    continue
                if failed:
                    self.failed(asked.offset, asked.seq)
                    self.done(asked.offset, asked.seq, at)
                else:
                    self._succeeded(asked.offset, asked.seq, at)
                told = told or asked.blocking
        return told
