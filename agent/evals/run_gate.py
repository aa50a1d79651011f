"""The gate at which the training thread waits at a boundary until the client decides whether the snippet runs.

Made by evals.py for each snippet.  Invariant: the training thread waits only as long as its client keeps reporting that
it is still there, and a few seconds more.
"""

from __future__ import annotations

from _thread import allocate_lock

CLIENT_TIMEOUT_SECONDS = 5.0


class RunGate:
    """decide() and extend() on the agent's thread, wait() on the training thread."""

    def __init__(self) -> None:
        self._run: bool | None = None
        self._extended = False
        self._decided = allocate_lock()
        self._decided.acquire()

    def decide(self, run: bool) -> None:
        """Run the snippet, or go on without it.  The first decision counts."""
        if self._run is None:
            self._run = run
            self._decided.release()

    def extend(self) -> None:
        """A decision will come: wait for one more period."""
        self._extended = True

    def wait(self) -> bool:
        """Whether to run.  A signal handler of the job may raise out of this call."""
        while not self._decided.acquire(timeout=CLIENT_TIMEOUT_SECONDS):
            if not self._extended:
                return False
            self._extended = False
        return bool(self._run)
