"""python.step_trace: one row per step, every step, with what its time went into.

Made of the boundaries between steps and of what the thread that trains did between two of them; the reading of both
is in probe.snapshot.timeline and probe.derive.phases.
"""

from __future__ import annotations

from functools import cached_property, partial
from typing import Any

import numpy as np

from ...arrays.arrow import nullable
from ...arrays.integers import Bools, Ints, distinct
from ...arrays.nesting import covered
from ...derive.blocking import Blocking, on_host, under_way
from ...derive.partition import Partition
from ...derive.phases import PHASES, phase_times
from ...derive.phases_at import phases_of, unrecorded
from ...protocol import NO_GROUP
from ...schema import COMMON, Column, Columns
from ...streams import (
    BARE,
    COLLECTIVES,
    EXTRA,
    LOADS,
    SAMPLED,
    SPANS,
    UNTIMED,
)  # fmt: skip
from ..declaration import Table

_STREAMS = (SPANS, LOADS, COLLECTIVES)
_MB = 1 << 20


def derive(part: Partition) -> Columns:
    """Rows of the steps that may be seen; the open one is the last."""
    steps = _Steps(part)
    return steps.columns(np.flatnonzero(steps.shown & part.timeline.visible(steps.step)))


class _Steps:
    """All steps of one rank, one element each: those that a boundary ended, then the open one.

    What the time of a step went into is worked out when a column asks for it.
    """

    def __init__(self, part: Partition) -> None:
        self._part = part
        timeline, rows, closed = part.timeline, part.timeline.boundaries, part.timeline.closings
        now = np.full(min(1, len(rows)), part.rank.now_ns)
        self._rows = rows.of(np.append(np.arange(len(rows)), now * 0 - 1))  # of the open step nothing is known
        self.is_open = np.arange(len(self._rows)) == len(rows)
        self.step: Ints = timeline.base + self._rows["count"] + self.is_open
        attached = np.minimum(part.rank.facts.attached_ns, closed.time[:1])
        self.begin: Ints = np.append(attached, closed.time)
        self.end: Ints = np.append(closed.time, now)
        flags = self._rows["flags"]
        self.recorded: Bools = ((flags & SAMPLED) != 0) & ~self.is_open
        self.sampled: Bools = self.recorded & (flags & EXTRA == 0)
        # the row before is of the step before: not so at the attach, nor in the open step
        self.whole: Bools = np.append(now < 0, np.diff(self._rows["count"]) == 1)
        self.shown = self._rows["count"] >= 0
        self.shown[:1] = self._rows["count"][:1] == 0
        if len(rows) > 1 and not part.rank.snapshot.open_steps:
            # an optimizer that was not through yet when this was read would be missing from the last step
            self.shown[len(rows) - 1] = (
                closed.stepped[-1] or not closed.stepped[-2] or bool(flags[-1] & (BARE | UNTIMED))
            )

    def columns(self, rows: Ints) -> Columns:
        """Of the chosen steps."""
        ended, samples, rss = self._rows["time_ns"][rows], self._rows["samples"], self._rows["rss_bytes"]
        in_eval = self._part.timeline.in_eval(ended, self._rows["thread"][rows])
        return {
            "start_ns": self.begin[rows],
            "step": self.step[rows],
            "in_eval": in_eval & ~self.is_open[rows],
            "duration": nullable((self.end - self.begin)[rows] / 1e9, self.whole[rows]),
            **{f"{name}_duration": partial(self._phase, name, rows) for name in (*PHASES, "other")},
            "comm_hidden_pct": partial(self._hidden, rows),
            "rss_mb": nullable(rss[rows] / _MB, ((rss > 0) & ~self.is_open)[rows]),
            "sampled": nullable(self.sampled[rows], ~self.is_open[rows]),
            "samples": nullable(samples[rows], ((samples > 0) & self.recorded & self.whole)[rows]),
        }

    @cached_property
    def known(self) -> dict[str, Bools]:
        """The steps in which each phase is known."""
        of_rows = (self._rows["flags"] & (BARE | UNTIMED)) == 0
        split = self.whole & of_rows & (self.step >= self._part.timeline.oldest(_STREAMS))
        lacking = unrecorded(self._part.rank.facts)
        data, calls = split & ("data" not in lacking), split & self.recorded & ("forward" not in lacking)
        others = {"data": data, "forward": calls, "validation": calls, "other": data & (calls | ~self.recorded)}
        others["comm"] = split & self._collectives_known()
        return dict.fromkeys((*PHASES, "other"), split) | others

    @cached_property
    def parts(self) -> dict[str, Ints]:
        """Nanoseconds of each phase; they add up to the step."""
        parts = {name: np.where(self.known[name], ns, 0) for name, ns in self._phases().items()}
        return {**parts, "other": self.end - self.begin - sum(parts.values())}

    def _phase(self, name: str, rows: Ints) -> Any:
        return nullable(self.parts[name][rows] / 1e9, self.known[name][rows])

    def _phases(self) -> dict[str, Ints]:
        """Nanoseconds of each phase in each step, by what its own thread did."""
        of_steps = self._rows["thread"]
        times, blocking = np.zeros((len(PHASES), len(self.step)), np.int64), Blocking(self._part)
        for thread in distinct(of_steps).tolist():
            mine = np.flatnonzero(of_steps == thread)
            done = phases_of(self._part, blocking, thread)
            times[:, mine] = phase_times(self.begin[mine], self.end[mine], done, list(PHASES.values()))
        return dict(zip(PHASES, times, strict=True))

    def _collectives_known(self) -> Bools:
        """Steps in which every collective was recorded: since the tap is in, or where there can be none."""
        facts = self._part.rank.facts
        tap, since = facts.taps.get("collectives"), facts.collectives_ns
        if tap != "on" or since is None:
            return np.full(len(self.step), tap == NO_GROUP)
        result: Bools = self.begin >= since
        return result

    def _hidden(self, rows: Ints) -> Any:
        """Of the time in which an operation was under way, the part in which the thread that trains did not wait."""
        intervals, waited = under_way(self._part), self.parts["comm"]
        busy = covered(self.end, *intervals) - covered(self.begin, *intervals)
        valid = self.known["comm"] & (self.parts["eval"] == 0) & ~self.is_open & (busy > 0) & on_host(self._part)
        return nullable((100 * np.maximum(busy - waited, 0) / np.maximum(busy, 1))[rows], valid[rows])


_OPEN = "The step of the attach, an open step."
_LOST = (
    f"{_OPEN[:-1]}, a step whose rows have been overwritten; of unsampled steps, bare ones (probe.overhead) and those "
    "too short to be timed within the budget."
)
_AS_BACKWARD = "Same as backward_duration."
_NO_LOADS = "any step of a rank whose loader_tap (probe.agents) is off, unless it has not imported torch.utils.data"
_NO_CALLS = "any step of a rank whose forward_tap is off"
_UNSAMPLED = (
    f"{_OPEN[:-1]}, a step whose rows have been overwritten, an unsampled step, whose module calls are in "
    f"other_duration, {_NO_CALLS}."
)
_CLOCK = "host's clock"


def _phase(name: str, doc: str, source: str, null: str = _AS_BACKWARD) -> Column:
    return Column(f"{name}_duration", "DOUBLE", "s", doc, source, null)


TABLE = Table(
    name="python.step_trace",
    doc="One row per step, for every step: where its time went.  The phases add up to duration.  They are what the "
    "training thread was doing, and a phase inside another one counts as the outer one; but what an optimizer's "
    "closure does counts as what it is.",
    columns=(
        *COMMON,
        Column("duration", "DOUBLE", "s",
               "Wall time of the step: from the end of the last optimizer of the step before to the end of its own.",
               _CLOCK, _OPEN),
        _phase("data", "Time in which torch's DataLoaders made an iterator or the job waited for a batch.",
               "python.iterator_trace, python.dataloader_trace", f"{_AS_BACKWARD[:-1]}, and {_NO_LOADS}."),
        _phase("forward", "Time in module calls that train, outside the other phases.", "outermost module calls",
               _UNSAMPLED),
        _phase("backward", "Time in backward passes, including forwards that they run again.", "autograd's engine",
               _LOST),
        _phase("validation", "Time in module calls that train nothing: autograd was off, or the model was in eval "
               "mode, in a step that also calls it in training mode.  Generation and frozen models are in it, too.",
               "outermost module calls", _UNSAMPLED),
        _phase("optimizer", "Time in Optimizer.step, without what its closure calls of the phases above.",
               "optimizer steps"),
        _phase("comm", "Time for which collectives blocked the training thread, in whatever phase: while it issued "
               "them and while it waited for one.  Next to nothing on a device, where it is the device that waits.",
               "python.nccl_trace, Work.wait, wait_tensor",
               f"{_AS_BACKWARD[:-1]}, and a step before collectives were recorded, when it is in the phases "
               "around it."),
        _phase("eval", "Time for which evals of probe held the training up.", "probe.evals"),
        _phase("other", "The rest of duration.", "duration less the phases",
               "Same as data_duration, and a sampled step of a rank whose forward_tap is off."),
        Column("comm_hidden_pct", "DOUBLE", "%",
               "Share of the time with a collective under way in which the training thread went on.  It "
               "says how well communication overlaps with compute; what communication costs is comm_duration.  A "
               "query from a step on counts collectives issued up to 64 steps before it.",
               "python.nccl_trace, comm_duration", "Same as comm_duration; no collectives, or some of a backend that "
               "runs them on a device; an open step, an eval."),
        Column("rss_mb", "DOUBLE", "MB", "Resident memory of the process at the end of the step (2^20 bytes).",
               "/proc/self/statm",
               "It was not read: an unsampled or open step, or it had been read a few milliseconds before."),
        Column("sampled", "BOOLEAN", "", "Whether module calls were recorded, in a block of ten steps that was chosen "
               "to stand for those around it. The first twenty steps after the attach and steps 100 to 109 are "
               "recorded, too.", "agent", "An open step."),
        Column("samples", "BIGINT", "",
               "Size of the first dimension of the first tensor passed to the model, summed over the micro steps: "
               "in a GAN, each pass of either model is one.",
               "first module call with gradients of each micro step",
               f"{_OPEN[:-1]}, an unsampled step, no tensor was seen, or one without a shape (strided NestedTensor); "
               "gradients made without backward(), as by torch.autograd.grad(); a pass through calls from before "
               "another pass, as in a pipeline or where two models are called before the passes of their two losses."),
    ),
    streams=_STREAMS,
    taps=("forward", "optimizer", "loader"),
    derive=derive,
    by_step=True,
    of_each_rank=True,
    question="Where does the time of a step go, in seconds?",
    example="SELECT rank, AVG(data_duration) AS data, AVG(forward_duration) AS forward, AVG(backward_duration) AS "
    "backward, AVG(validation_duration) AS validation, AVG(optimizer_duration) AS optimizer, AVG(comm_duration) AS "
    "comm, AVG(eval_duration) AS eval, AVG(other_duration) AS other, AVG(duration) AS step FROM python.step_trace "
    "WHERE sampled GROUP BY rank ORDER BY rank",
)  # fmt: skip
