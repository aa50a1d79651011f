"""Coalesced operations: those between ProcessGroup._start_coalescing and _end_coalescing, as batches of sends are.

Part of the tap of collectives, which installs and removes it.  A backend on a device begins and ends all of them
together, and what it returns for one of them tells nothing.
Invariant: the job gets and catches exactly what it would without us.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...noop import noop
from ..dynamo import shielded_from_dynamo
from .device_works import DeviceWorks

_NAMES = "_start_coalescing", "_end_coalescing"


class Coalescing:
    """install() and remove() replace and restore the two functions."""

    def __init__(self, device_works: DeviceWorks, report_fault: Callable[[Exception], None]) -> None:
        self._device_works, self._report_fault = device_works, report_fault
        self._restore: Callable[[], None] = noop

    def install(self, group_class: Any) -> None:
        if any(name not in group_class.__dict__ for name in _NAMES):
            return
        start, end = (group_class.__dict__[name] for name in _NAMES)
        original_start, original_end = (getattr(group_class, name) for name in _NAMES)
        coalesce, coalesced, report_fault = (
            self._device_works.coalesce, self._device_works.coalesced, self._report_fault,
        )  # fmt: skip

        def _start_coalescing(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                coalesce()
            except Exception as error:  # inside a collective of the user: no exception of ours may escape
                report_fault(error)
            return original_start(self, *args, **kwargs)

        def _end_coalescing(self: Any, *args: Any, **kwargs: Any) -> Any:
            work = original_end(self, *args, **kwargs)
            try:
                coalesced(work)
            except Exception as error:  # as above
                report_fault(error)
            return work

        ours = shielded_from_dynamo(_start_coalescing), shielded_from_dynamo(_end_coalescing)
        for name, function in zip(_NAMES, ours, strict=True):
            setattr(group_class, name, function)

        def restore() -> None:
            for name, function, original in zip(_NAMES, ours, (start, end), strict=True):
                if group_class.__dict__.get(name) is function:
                    setattr(group_class, name, original)

        self._restore = restore

    def remove(self) -> None:
        """Restore them, unless someone else has replaced ours in the meantime.  It is not installed again."""
        restore, self._restore, self._report_fault = self._restore, noop, noop
        restore()
