"""The output of many ranks as one text: equal lines are printed once, under `ranks 0-7:`.

Lines that all ranks have printed go out at once.  From the first difference on, each rank's lines are held; they go out
grouped by equal text when the ranks are done or the oldest held line is PATIENCE_S old.
Called by eval, look() from a thread of its own.  Invariant: nothing that was fed is lost or reordered within a rank.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from probe.text import title

PATIENCE_S = 1.0  # how long a line may wait for an equal one from another rank


class RankOutput:
    """One stream (stdout or stderr) of `ranks`, passed to `write`; the output of a single rank has no header."""

    def __init__(
        self, ranks: Sequence[int], write: Callable[[str], object], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._held = dict.fromkeys(sorted(ranks), "")
        self._write = write
        self._clock = clock
        self._since: float | None = None
        self._under: tuple[int, ...] = ()
        self._at_line_start = True
        self._lock = threading.Lock()

    def feed(self, rank: int, text: str) -> None:
        """Text that a rank printed; an unknown rank is added."""
        with self._lock:
            self._feed(rank, text)

    def look(self) -> None:
        """Write what has waited long enough."""
        with self._lock:
            if self._since is not None and self._clock() - self._since > PATIENCE_S:
                self._write_groups(whole_lines=True)

    def finish(self) -> None:
        """No more text comes: write everything that is held."""
        with self._lock:
            self._write_groups(whole_lines=False)
            if not self._at_line_start and len(self._held) > 1:
                self._write("\n")

    def _feed(self, rank: int, text: str) -> None:
        self._held[rank] = self._held.get(rank, "") + text
        if len(self._held) == 1:
            self._out((rank,), self._take(rank, len(self._held[rank])))
            return
        self._write_common()
        if not any(self._held.values()):
            self._since = None
        elif self._since is None:
            self._since = self._clock()
        elif self._clock() - self._since > PATIENCE_S:
            self._write_groups(whole_lines=True)

    def _write_common(self) -> None:
        """Write the whole lines with which every rank's held text begins."""
        texts = list(self._held.values())
        first, last = min(texts), max(texts)
        length = next((i for i, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), len(first))
        length = first.rfind("\n", 0, length) + 1
        if length:
            parts = [self._take(rank, length) for rank in self._held]
            self._out(tuple(self._held), parts[0])

    def _write_groups(self, whole_lines: bool) -> None:
        """Write what each rank holds, grouping the ranks whose texts are equal."""
        groups: dict[str, list[int]] = {}
        for rank, text in self._held.items():
            length = text.rfind("\n") + 1 if whole_lines else len(text)
            if length:
                groups.setdefault(self._take(rank, length), []).append(rank)
        for text, ranks in groups.items():
            self._out(tuple(ranks), text)
        self._since = None

    def _take(self, rank: int, length: int) -> str:
        text = self._held[rank]
        self._held[rank] = text[length:]
        return text[:length]

    def _out(self, ranks: tuple[int, ...], text: str) -> None:
        if len(self._held) > 1 and ranks != self._under:
            self._write(("" if self._at_line_start else "\n") + f"{title(ranks)}:\n")
            self._under = ranks
        self._write(text)
        self._at_line_start = text.endswith("\n")
