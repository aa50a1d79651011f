"""The job's steps as this process counts them: one row at each boundary, made in the anchor optimizer's post-hook.

The anchor is the first optimizer seen to step; another takes over when it has been silent for a while.
The one invariant: every boundary increments `count` exactly once, on the training thread.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from ...streams import SAMPLED, STEPS, STREAMS
from ..noop import noop
from ..storage.rows import Stream
from .sample_count import SampleCount
from .sampling import Sampling
from .trainer_step import TrainerStep

_SILENT = 16  # steps of another optimizer without one of the anchor: it has been replaced
_RECENT = 32  # steps that say how long one usually takes
_TIME, _THREAD = (STREAMS[STEPS].index(slot) for slot in ("time_ns", "thread"))
_PLAIN = -1, 0, 0


class Steps:
    """count: boundaries so far; base + count - 1: the job's number of the step that ended last.

    stepped(optimizer, serial, now): in every optimizer's post-hook; a boundary if it is the anchor's.
    """

    def __init__(self, stream: Stream, boundary: Callable[[int], int], sampling: Sampling) -> None:
        self._stream, self._boundary, self._sampling = stream, boundary, sampling
        self.flags = SAMPLED  # of the step that runs
        self.plain = False  # of that step nothing is known but its time
        self.turn_at = 0  # the count at which turned() is to be called
        self._woken = False
        self._sample_at = 0
        self._distributed: Any = None  # torch's module, once there is a process group
        self.rss_bytes: Callable[[int], int] = _not_read
        self.samples = SampleCount()
        self.count = 0
        self.base = 0
        self.source = "attach"
        self.own_number: TrainerStep | None = None  # while it is not known whether the job has one
        self.anchor = 0  # serial
        self.anchor_name: str | None = None
        self._others, self._others_at = 0, 0
        self.stepped: Callable[[Any, int, int], None] = _stepped(self, stream)

    def known(self, now: int, thread: int) -> tuple[int, int, int]:
        """group_seq, rss_bytes and samples of the step that ends."""
        group = -1 if self._distributed is None else group_seq(self._distributed)
        return (group, self.rss_bytes(now), self.samples.take(thread)) if self.flags & SAMPLED else (group, 0, 0)

    def turned(self, count: int, thread: int) -> None:
        """At boundaries that the sampling or the Boundary want to be told of; those name the next one."""
        self.turn_at = count + 1  # should it raise
        self._woken = False
        if count >= self._sample_at:
            self._sample(thread)
        self.turn_at = min(self._sample_at, self._boundary(count))
        if self._woken:  # meanwhile, by another thread
            self._sample_at = self.turn_at = 0

    def wake(self) -> None:
        """The Boundary is to be told of the next step.  Any thread."""
        self._woken = True
        self.turn_at = 0

    def turn_soon(self) -> None:
        """Settings have changed: ask for the flags at the next boundary.  Any thread."""
        self._sample_at = 0
        self.wake()

    def _sample(self, thread: int) -> None:
        self._sample_at = self.count + 1  # should it raise
        if self.own_number is not None:
            self._settle(self.own_number)
        self._distributed = with_process_group()
        before = self.flags
        self.flags, steps = self._sampling.turn(self.base + self.count, self.count, self.typical_ns)
        self.plain = self._distributed is None and not self.flags & SAMPLED
        if self.flags & SAMPLED and not before & SAMPLED:
            self.samples.take(thread)  # counting begins
        self._sample_at = self.count + (steps if self.own_number is None else 1)

    def _settle(self, own: TrainerStep) -> None:
        """At the first boundaries: the reader shows no step before its number is final."""
        if own.pending:
            own.boundary(self.count - 1)
        if not own.pending:
            self.own_number = None
            if own.base is not None and self.source == "attach":
                self.base, self.source = own.base, own.source

    def takes_over(self, optimizer: Any, serial: int) -> bool:
        """Another optimizer has stepped: is it the anchor from now on?"""
        if self._others_at != self.count:
            self._others, self._others_at = 0, self.count
        self._others += 1
        if self.anchor and self._others < _SILENT:
            return False
        self._elect(optimizer, serial)
        self._distributed = with_process_group()
        self.plain &= self._distributed is None
        return True

    def _elect(self, optimizer: Any, serial: int) -> None:
        self.anchor, self.anchor_name = serial, type(optimizer).__name__
        if self.source == "attach" and self.count == 0:
            done = _steps_done(optimizer)
            if done:
                self.base, self.source = done - 1, "optimizer"
            else:
                self.own_number = TrainerStep(sys._getframe(1), optimizer, self.count)

    def align(self, base: int, source: str) -> None:
        """The job's number of the step whose count is 0, as worked out over all ranks."""
        self.base, self.source = base, source

    def release(self) -> None:
        """Once the optimizers' tap is out: leave nothing to the collector."""
        self.stepped = noop

    @property
    def last_ns(self) -> int | None:
        """When the last step ended; any thread."""
        return self._last(_TIME)

    @property
    def training_thread(self) -> int | None:
        """That which ended the last step; any thread."""
        return self._last(_THREAD)

    def typical_ns(self) -> int | None:
        """Median time of the last steps; any thread."""
        ends = [row[_TIME] for row in self._recent(_RECENT + 1)]
        durations = sorted(end - before for before, end in pairwise(ends))
        return durations[len(durations) // 2] if durations else None

    def _last(self, slot: int) -> int | None:
        rows = self._recent(2)  # the last one may not be written yet
        return rows[-1][slot] if rows else None

    def _recent(self, count: int) -> list[tuple[int, ...]]:
        """The rows of the last steps."""
        last, rows = self._stream.position(), list[tuple[int, ...]]()
        for first, view in self._stream.read(last - count + 1, last, count):
            found = enumerate(self._stream.struct.iter_unpack(view), first)
            rows += [row for number, row in found if row[-1] == number]  # else it is being written
        return rows


def _stepped(steps: Steps, stream: Stream) -> Callable[[Any, int, int], None]:
    """What each step of each job pays: as in module_calls.py, defaults of arguments, and nothing that is rare."""

    def stepped(
        optimizer: Any,
        serial: int,
        now: int,
        steps: Steps = steps,
        ident: Any = sys.modules["_thread"].get_ident,
        claim: Any = stream.claim,
        pack_into: Any = stream.pack_into,
        buffer: Any = stream.buffer,
    ) -> None:
        if serial != steps.anchor and not steps.takes_over(optimizer, serial):
            return
        thread, flags, count = ident(), steps.flags, steps.count
        group, rss_bytes, samples = _PLAIN if steps.plain else steps.known(now, thread)
        offset, seq = claim()
        pack_into(buffer, offset, now, count, group, serial, rss_bytes, samples, thread, flags, seq)
        steps.count = count = count + 1
        if count >= steps.turn_at:
            steps.turned(count, thread)

    return stepped


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
