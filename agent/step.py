"""The job's steps as this process counts them: one row at each boundary, made in the anchor optimizer's post-hook.

The anchor is the first optimizer seen to step; another takes over when it has been silent for a while.
The one invariant: every boundary increments `count` exactly once, on the training thread.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from ..streams import SAMPLED
from .own_number import OwnNumber
from .rows import Stream
from .samples import Samples
from .sampling import Sampling

_SILENT = 16  # steps of another optimizer without one of the anchor: it has been replaced
_RECENT = 32  # steps that say how long one usually takes


class Steps:
    """count: boundaries so far; base + count - 1: the job's number of the step that ended last."""

    def __init__(self, stream: Stream, boundary: Callable[[int], None], sampling: Sampling) -> None:
        self._boundary, self._sampling = boundary, sampling
        self._claim, self._pack_into, self._buffer = stream.claim, stream.pack_into, stream.buffer
        self._ident = sys.modules["_thread"].get_ident
        self._flags = SAMPLED  # of the step that runs
        self._turn_at = 0
        self._distributed: Any = None  # torch's module, once there is a process group
        self.rss_bytes: Callable[[int], int] = _not_read
        self.samples = Samples()
        self.count = 0
        self.base = 0
        self.source = "attach"
        self.own_number: OwnNumber | None = None  # while it is not known whether the job has one
        self.training_thread: int | None = None
        self.anchor_name: str | None = None
        self._anchor = 0  # serial
        self._others, self._others_at = 0, 0
        self._ends: deque[int] = deque(maxlen=_RECENT + 1)

    def stepped(self, optimizer: Any, serial: int, now: int) -> None:
        """In every optimizer's post-hook; a boundary if it is the anchor's.

        Each look-up counts: nothing that this needs is in a cache when a step ends.
        """
        if serial != self._anchor and not self._takes_over(optimizer, serial):
            return
        thread, flags, count = self._ident(), self._flags, self.count
        group = -1 if self._distributed is None else group_seq(self._distributed)
        rss_bytes, samples = (self.rss_bytes(now), self.samples.take(thread)) if flags & SAMPLED else (0, 0)
        offset, seq = self._claim()
        self._pack_into(self._buffer, offset, now, count, group, serial, rss_bytes, samples, thread, flags, seq)
        self.training_thread = thread
        self._ends.append(now)
        self.count = count = count + 1
        if count >= self._turn_at:
            self._turn(thread)
        self._boundary(count)

    def _turn(self, thread: int) -> None:
        self._turn_at = self.count + 1  # should it raise
        if self.own_number is not None:
            self._settle(self.own_number)
        self._distributed = with_process_group()
        before = self._flags
        self._flags, steps = self._sampling.turn(self.base + self.count, self.count, self.typical_ns)
        if self._flags & SAMPLED and not before & SAMPLED:
            self.samples.take(thread)  # counting begins
        self._turn_at = self.count + (steps if self.own_number is None else 1)

    def _settle(self, own: OwnNumber) -> None:
        """At the first boundaries: the reader shows no step before its number is final."""
        if own.pending:
            own.boundary(self.count - 1)
        if not own.pending:
            self.own_number = None
            if own.base is not None and self.source == "attach":
                self.base, self.source = own.base, own.source

    def turn_soon(self) -> None:
        """Settings have changed: ask for the flags at the next boundary.  Any thread."""
        self._turn_at = 0

    def _takes_over(self, optimizer: Any, serial: int) -> bool:
        """Another optimizer has stepped: is it the anchor from now on?"""
        if self._others_at != self.count:
            self._others, self._others_at = 0, self.count
        self._others += 1
        if self._anchor and self._others < _SILENT:
            return False
        self._elect(optimizer, serial)
        self._distributed = with_process_group()
        return True

    def _elect(self, optimizer: Any, serial: int) -> None:
        self._anchor, self.anchor_name = serial, type(optimizer).__name__
        if self.source == "attach" and self.count == 0:
            done = _steps_done(optimizer)
            if done:
                self.base, self.source = done - 1, "optimizer"
            else:
                self.own_number = OwnNumber(sys._getframe(1), optimizer, self.count)

    def align(self, base: int, source: str) -> None:
        """The job's number of the step whose count is 0, as worked out over all ranks."""
        self.base, self.source = base, source

    @property
    def last_ns(self) -> int | None:
        """When the last step ended; any thread."""
        return self._ends[-1] if self._ends else None

    def typical_ns(self) -> int | None:
        """Median time of the last steps; any thread."""
        durations = sorted(end - before for before, end in pairwise(self._ends.copy()))
        return durations[len(durations) // 2] if durations else None


def _not_read(now: int) -> int:
    return 0


def _steps_done(optimizer: Any) -> int:
    """The optimizer's own count, where it keeps one on the CPU (reading a CUDA tensor would wait for the device)."""
    state = next(iter(optimizer.state.values()), None)
    done = state.get("step") if isinstance(state, dict) else None
    if isinstance(done, int):
        return done
    if type(done).__name__ == "Tensor" and done.device.type == "cpu" and done.numel() == 1:  # type: ignore[union-attr]
        return int(done.item())  # type: ignore[union-attr]
    return 0


def with_process_group() -> Any:
    """torch's distributed_c10d if there is a default process group; the group itself is never kept."""
    distributed = sys.modules.get("torch.distributed.distributed_c10d")
    return distributed if distributed is not None and group_seq(distributed) >= 0 else None


def group_seq(distributed: Any) -> int:
    """The default process group's sequence number, equal on all ranks at the same boundary; -1 without one."""
    try:
        group = distributed._world.default_pg
        return -1 if group is None else int(group._get_sequence_number_for_group())
    except (AttributeError, RuntimeError):  # a backend without sequence numbers, or a group going down
        return -1
