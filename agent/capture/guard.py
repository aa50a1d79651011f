"""Stands where the job would begin what runs only once in a process: a profiler, a history of its allocator.

Installed by profiler.py and allocator_history.py as long as theirs runs.  Invariant: the job's call is made whatever
ours did before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..job_signals import raised_by_handler


class Guard:
    """on_job: called on the thread of the job that is about to begin its own."""

    def __init__(self, on_job: Callable[[], None]) -> None:
        self._on_job = on_job
        self._places: list[tuple[Any, str, Any]] = []

    def install(self, places: Iterable[tuple[Any, str]]) -> None:
        """places: owner and name of each function that begins one."""
        for owner, name in places:
            original = getattr(owner, name)
            self._places.append((owner, name, original))
            setattr(owner, name, _after(self._on_job, original))

    def remove(self) -> None:
        while self._places:
            setattr(*self._places.pop())


def _after(first: Callable[[], None], original: Callable[..., Any]) -> Callable[..., Any]:
    def begun(*args: Any, **kwargs: Any) -> Any:
        try:
            first()
        except Exception as error:  # the job's call is next on the stack
            if raised_by_handler(error):
                raise
        return original(*args, **kwargs)

    return begun
