"""The word for which the training stands at a boundary: to run what was asked for there, or to go on.

Made by evals.py for each snippet.  The one invariant: the training stands there as long as its client says that it
is still there, and a few seconds more.
"""

from __future__ import annotations

from _thread import allocate_lock

WORD_SECONDS = 5.0


class RunGate:
    """give() and extend() on the agent's thread, wait() on the training's."""

    def __init__(self) -> None:
        self._run: bool | None = None
        self._extended = False
        self._given = allocate_lock()
        self._given.acquire()

    def give(self, run: bool) -> None:
        """The first one counts."""
        if self._run is None:
            self._run = run
            self._given.release()

    def extend(self) -> None:
        """There will be a word."""
        self._extended = True

    def wait(self) -> bool:
        """Whether to run.  A signal handler of the job's may raise out of it."""
        while not self._given.acquire(timeout=WORD_SECONDS):
            if not self._extended:
                return False
            self._extended = False
        return bool(self._run)
