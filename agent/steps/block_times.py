"""How long whole blocks of steps took, and by how much sampled ones are longer than the others beside them.

Sampling calls begin() and spoil() on the training thread.  The taps cannot time what happens before their own code
runs: where another thread of the job computes in Python, each mark of a backward pass waits for the GIL, up to 5 ms.
Invariant: only neighbours are compared, as a job's steps may change with time, and one comparison decides nothing.
"""

from __future__ import annotations

from collections import deque

from ...streams import BLOCK


class BlockTimes:
    """excess_ns: of a sampled step over one that is not, the lesser of the last two comparisons; 0 before."""

    def __init__(self) -> None:
        self._current: tuple[int, bool, int] | None = None  # its first step since the attach, whether sampled, when
        self._whole: deque[tuple[bool, int]] = deque(maxlen=3)  # those that ended last, one after the other
        self._excesses: deque[int] = deque(maxlen=2)

    @property
    def excess_ns(self) -> int:
        return min(self._excesses) if len(self._excesses) == 2 else 0

    def begin(self, since_attach: int, is_sampled: bool, now: int) -> bool:
        """A block begins, and the one before it has ended; True if that made a comparison."""
        before, self._current = self._current, (since_attach, is_sampled, now)
        if before is None or before[0] + BLOCK != since_attach:
            self._whole.clear()
            return False
        self._whole.append((before[1], now - before[2]))
        return self._compare()

    def spoil(self) -> None:
        """The current block is not of one kind."""
        self._current = None

    def _compare(self) -> bool:
        """A block with the two around it, if it is of another kind than both."""
        if len(self._whole) < 3:
            return False
        (is_sampled, first), (other, middle), (third, last) = self._whole
        if is_sampled == other or third == other:
            return False
        excess = min(first, last) - middle if is_sampled else middle - max(first, last)
        self._excesses.append(excess // BLOCK)
        return True
