"""The job's steps as this process counts them: one row per boundary, written in the anchor optimizer's post-hook.

The anchor is the first optimizer seen to step; another takes over once the anchor is dead or has been silent for a
while.  Where hooks of autograd step optimizers, the pass that they are in ends the step, at its own end and on its own
thread.  Where no optimizer steps though gradients are made, backward passes end the steps (step_ends.py).
Invariant: every boundary increments `count` exactly once, on the training thread.
"""

from __future__ import annotations

import sys
from _thread import get_ident
from collections.abc import Callable
from itertools import pairwise
from typing import Any
from weakref import ref

from ...streams import SAMPLED, STEPS, STREAMS
from ..noop import noop
from ..storage.rows import Stream
from .sample_count import SampleCount
from .sampling import Sampling
from .trainer_step import TrainerStep

PASS = -1  # the anchor, in place of an optimizer's serial number: the end of a backward pass
BACKWARD = "backward"  # its name
_PROVISIONAL = "attach", "group_seq"  # sources, if passes ended the first steps: until an optimizer has stepped
_MAX_SILENT = 16  # steps of other optimizers, one of which steps again: the anchor has been replaced
_MOST_OTHERS = 1024  # kept track of; a job that makes a new one for each step has no other that steps again
_RECENT = 32  # steps whose median is the typical step time
_TIME = STREAMS[STEPS].index("time_ns")
_NOT_MEASURED = -1, 0, 0


class Steps:
    """count: boundaries so far; base + count - 1: the job's number of the step that ended last.

    Every optimizer's post-hook calls stepped(optimizer, serial, now); it is a boundary if the optimizer is the anchor.
    """

    def __init__(self, stream: Stream, boundary: Callable[[int], int], sampling: Sampling) -> None:
        self._stream, self._boundary, self._sampling = stream, boundary, sampling
        self.flags = SAMPLED  # of the running step
        self.plain = False  # only the time of that step is recorded
        self.due_at = 0  # the count at which boundary_due() is called
        self._woken = False
        self._sample_at = 0
        self._distributed: Any = None  # torch's distributed_c10d, once there is a process group
        self.rss_bytes: Callable[[int], int] = lambda now: 0
        self.samples = SampleCount()
        self.count = 0
        self.base = 0
        self.source = "attach"
        self.trainer_step: TrainerStep | None = None  # until it is known whether the job has a number of its own
        self.anchor = 0  # its serial number, or PASS
        self._living: Callable[[], Any] = noop  # the anchor, as long as it lives
        self.passes = 0  # outermost backward passes so far, counted while the taps time them
        self.by_pass = False  # whether backward passes end the steps
        self.inside_pass = False  # whether those do in which hooks of autograd step optimizers
        self.anchor_name: str | None = None
        self._done_in_pass: int | None = None  # an optimizer that stepped in this pass: its steps; None: none did
        self._is_numbered = False  # whether the number of the job was looked for
        self._others, self._others_steps, self._others_at = set[int](), 0, 0
        self.stepped: Callable[[Any, int, int], None] = _make_stepped(self, stream)

    def measured(self, now: int, thread: int) -> tuple[int, int, int]:
        """group_seq, rss_bytes and samples of the step that ends now."""
        group = -1 if self._distributed is None else group_seq(self._distributed)
        return (group, self.rss_bytes(now), self.samples.take(thread)) if self.flags & SAMPLED else (group, 0, 0)

    def boundary_due(self, count: int, thread: int) -> None:
        """At the boundaries that Sampling or Boundary asked for; each then names its next one."""
        self.due_at = count + 1  # in case something below raises
        self._woken = False
        if count >= self._sample_at:
            self._sample(thread)
        self.due_at = min(self._sample_at, self._boundary(count))
        if self._woken:  # by another thread, meanwhile
            self._sample_at = self.due_at = 0

    def wake(self) -> None:
        """Have the Boundary called at the next step.  Any thread."""
        self._woken = True
        self.due_at = 0

    def resample(self) -> None:
        """Ask Sampling for new flags at the next boundary, because settings changed.  Any thread."""
        self._sample_at = 0
        self.wake()

    def _sample(self, thread: int) -> None:
        self._sample_at = self.count + 1  # in case something below raises
        if self.trainer_step is not None:
            self._check_trainer_step(self.trainer_step)
        self._distributed = with_process_group()
        before = self.flags
        self.flags, steps = self._sampling.begin_step(self.next_step, self.count, self.typical_ns)
        self.plain = self._distributed is None and not self.flags & SAMPLED
        if self.flags & SAMPLED and not before & SAMPLED:
            self.samples.take(thread)  # counting starts here
        self._sample_at = self.count + (steps if self.trainer_step is None else 1)

    def _check_trainer_step(self, trainer_step: TrainerStep) -> None:
        """Runs at the first boundaries; readers show no step before its number is final."""
        if trainer_step.pending:
            trainer_step.boundary(self.count - 1)
        if not trainer_step.pending:
            self.trainer_step = None
            if trainer_step.base is not None and self.source in _PROVISIONAL:
                self._renumber(trainer_step.base, trainer_step.source, trainer_step.first)

    def takes_over(self, optimizer: Any, serial: int) -> bool:
        """Whether this optimizer, which has just stepped, is the anchor from now on."""
        if _is_in_pass():
            if self._done_in_pass is None and self.samples.is_in_pass:  # else its end will not be seen
                self._done_in_pass = 0 if self._is_numbered else _steps_done(optimizer)
            return False
        if not self._is_replaced_by(serial):
            return False
        self.by_pass = self.inside_pass = False
        self._make_anchor(serial, type(optimizer).__name__)
        self._living = ref(optimizer)
        if not self._is_numbered:
            self._number(_steps_done(optimizer), optimizer)
        return True

    def _is_replaced_by(self, serial: int) -> bool:
        """Whether no optimizer that lives ends steps, or it is silent: the others step again and again."""
        if self._others_at != self.count:
            self._others.clear()
            self._others_steps, self._others_at = 0, self.count
        self._others_steps += 1
        again = serial in self._others or len(self._others) >= _MOST_OTHERS
        self._others.add(serial)
        is_alive = self.anchor > 0 and self._living() is not None  # a job may make an optimizer for each step
        has_anchor = (is_alive or self.inside_pass) and not self.by_pass
        return not has_anchor or (again and self._others_steps >= _MAX_SILENT)

    def passed(self, now: int) -> None:
        """An outermost backward pass that makes gradients is over.  On the thread that ran it."""
        self.passes += 1
        done, self._done_in_pass = self._done_in_pass, None
        if done is not None and (self.inside_pass or self._is_replaced_by(PASS)):
            self.by_pass, self.inside_pass = False, True
        elif not self.by_pass:
            return
        if self.anchor != PASS:
            self._make_anchor(PASS, BACKWARD)
        if done is not None and not self._is_numbered:
            self._number(done, None)
        self.stepped(None, PASS, now)

    def _make_anchor(self, serial: int, name: str) -> None:
        self.anchor, self.anchor_name = serial, name
        self._distributed = with_process_group()
        self.plain &= self._distributed is None

    def _number(self, done: int, optimizer: Any) -> None:
        """An optimizer has stepped for the first time, so often since it was made: take that for the job's number."""
        self._is_numbered = True
        if self.source not in _PROVISIONAL:
            return
        self.resample()
        if done:
            self._renumber(done - 1 - self.count, "optimizer", self.count)
        else:
            self.trainer_step = TrainerStep(sys._getframe(1), optimizer, self.count)

    def _renumber(self, base: int, source: str, ended: int) -> None:
        """ended: steps that readers have seen; a number that these had is not given to later ones."""
        if not ended or base >= self.base:
            self.base, self.source = base, source

    def align(self, base: int, source: str) -> None:
        """Set the job's number of the step whose count is 0, as agreed over all ranks."""
        self.base, self.source = base, source

    def release(self) -> None:
        """Call this once the optimizers' tap is removed; it leaves no cycle to the garbage collector."""
        self.stepped = noop

    @property
    def next_step(self) -> int:
        """The job's number of the step that is under way.  Any thread."""
        return self.base + self.count

    @property
    def last_ns(self) -> int | None:
        """When the last step ended.  Any thread."""
        return self._stream.last_value("time_ns")

    @property
    def training_thread(self) -> int | None:
        """The thread that ended the last step.  Any thread."""
        return self._stream.last_value("thread")

    def typical_ns(self) -> int | None:
        """Median duration of the last steps, in ns.  Any thread."""
        ends = [row[_TIME] for row in self._stream.newest(_RECENT + 1)]
        durations = sorted(end - before for before, end in pairwise(ends))
        return durations[len(durations) // 2] if durations else None


def _make_stepped(steps: Steps, stream: Stream) -> Callable[[Any, int, int], None]:
    """Every step of every job runs this: names are argument defaults, as in module_calls.py; rare work is elsewhere."""

    def stepped(
        optimizer: Any,
        serial: int,
        now: int,
        steps: Steps = steps,
        ident: Any = get_ident,
        claim: Any = stream.claim,
        pack_into: Any = stream.pack_into,
        buffer: Any = stream.buffer,
    ) -> None:
        if serial != steps.anchor and not steps.takes_over(optimizer, serial):
            return
        thread, flags, count = ident(), steps.flags, steps.count
        group, rss_bytes, samples = _NOT_MEASURED if steps.plain else steps.measured(now, thread)
        offset, seq = claim()
        pack_into(buffer, offset, now, count, group, serial, rss_bytes, samples, thread, flags, seq)
        steps.count = count = count + 1
        if count >= steps.due_at:
            steps.boundary_due(count, thread)

    return stepped


def _is_in_pass() -> bool:
    """Whether autograd is running this thread's code, as a hook: on a device, on a thread of its own."""
    torch = sys.modules.get("torch")
    return torch is not None and torch._C._current_graph_task_id() >= 0


def _steps_done(optimizer: Any) -> int:
    """The optimizer's own count if kept on the CPU, else 0 (reading a CUDA tensor would wait for the device)."""
    state = next(iter(optimizer.state.values()), None)
    done: Any = state.get("step") if isinstance(state, dict) else None
    if isinstance(done, int):
        return done
    if type(done).__name__ != "Tensor":
        return 0
    torch = sys.modules["torch"]
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():  # modes are code of the job's
        return int(done.item()) if done.device.type == "cpu" and done.numel() == 1 else 0


def with_process_group() -> Any:
    """torch's distributed_c10d if there is a default process group.  The group itself is never kept."""
    distributed = sys.modules.get("torch.distributed.distributed_c10d")
    return distributed if distributed is not None and group_seq(distributed) >= 0 else None


def group_seq(distributed: Any) -> int:
    """The default process group's sequence number, equal on all ranks at one boundary; -1 without a group."""
    try:
        group = distributed._world.default_pg
        return -1 if group is None else int(group._get_sequence_number_for_group())
    except (AttributeError, RuntimeError):  # a backend without sequence numbers, or a group shutting down
        return -1
