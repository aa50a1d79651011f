"""Waits: the time that any thread blocks until an operation has ended, as a span of kind WAIT.

Part of the tap of collectives, which installs and removes it: it covers Work.wait in Python and the operator
wait_tensor of functional collectives.  Waits inside C++ (DDP's reducer) cannot be seen here; the reader derives when
they happen.
Invariant: the caller waits for, gets and catches exactly what it would without us.
"""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from ....streams import FAILED, WAIT
from ...noop import noop
from ...storage.rows import Stream
from ..dynamo import shielded_from_dynamo
from .device_works import DeviceWorks
from .kernel import Recorder


class Waits:
    """install() and remove() replace and restore Work.wait; kernel() makes a kernel for wait_tensor.

    ended(work, ns, failed) is called after every wait for a Work; it returns whether the operation's own row covers it.
    """

    def __init__(
        self, spans: Stream, recorder: Recorder, ended: Callable[[Any, int, bool], bool], device_works: DeviceWorks
    ) -> None:
        self._append, self._ended, self._device_works = spans.append, ended, device_works
        self._recorder: Recorder | None = recorder
        self._restore: Callable[[], None] = noop  # it holds a reference to this object

    def install(self, work_class: Any) -> None:
        original = work_class.__dict__["wait"]
        original_wait, over, clock = work_class.wait, self._over, perf_counter_ns
        on_device, before, behind = self._device_works, self._before, self._behind

        def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
            waits = before(self) if on_device.kept else None
            start = clock()
            try:
                result = original_wait(self, *args, **kwargs)
            except BaseException:
                over(self, start, FAILED)
                raise
            over(self, start, 0)
            if waits is not None:
                behind(waits)
            return result

        wait.__doc__ = original_wait.__doc__
        ours = work_class.wait = shielded_from_dynamo(wait)

        def restore() -> None:
            if work_class.__dict__.get("wait") is ours:
                work_class.wait = original

        self._restore = restore

    def remove(self) -> None:
        """Restore Work.wait, unless someone else has replaced ours in the meantime."""
        restore, self._restore = self._restore, noop
        restore()

    def release(self) -> None:
        """Drop the reference to the recorder, which holds this object.  Nothing is written any more."""
        self._recorder = None

    def kernel(self, redispatch: Callable[..., Any], below: Any) -> Any:
        over, clock = self._over, perf_counter_ns
        on_device, before, behind = self._device_works, self._before, self._behind

        def kernel(keyset: Any, tensor: Any) -> Any:
            waits = before(None, tensor) if on_device.kept else None
            start = clock()
            try:
                result = redispatch(keyset & below, tensor)
            except BaseException:
                over(None, start, FAILED)
                raise
            over(None, start, 0)
            if waits is not None:
                behind(waits)
            return result

        return shielded_from_dynamo(kernel)

    def _before(self, work: Any, tensor: Any = None) -> Any:
        """A wait for this Work, or for the functional collective of this tensor, begins."""
        try:
            if work is None:
                return self._device_works.before_wait_for(tensor.data_ptr())
            return self._device_works.before_wait(work)
        except Exception as error:  # inside a wait of the user: no exception of ours may escape
            self._report(error)
            return None

    def _behind(self, waits: Any) -> None:
        try:
            self._device_works.behind_wait(waits)
        except Exception as error:  # as above
            self._report(error)

    def _report(self, error: Exception) -> None:
        if self._recorder is not None:
            self._recorder.report_fault(error)

    def _over(self, work: Any, start: int, flags: int) -> None:
        """A wait has just returned or raised."""
        end, recorder = perf_counter_ns(), self._recorder
        try:
            is_covered = work is not None and self._ended(work, end, bool(flags))
            if not is_covered and recorder is not None and recorder.recording:
                self._append(start, end, 0, get_ident(), WAIT | flags)
        except ValueError:  # the stream was closed in the meantime
            pass
        except Exception as error:  # as above
            self._report(error)
