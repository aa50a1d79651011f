"""python.torch_trace: one row per module call, per backward of a module, per optimizer step and per wait of a thread.

Made of spans (calls, engine passes, optimizer steps) and of the marks that autograd leaves, whose reading is in
probe.derive.module_rows, and of collectives (probe.derive.blocking).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from ...arrays.arrow import choice, coded, nullable
from ...arrays.integers import NONE, Bools, Ints, distinct
from ...arrays.nesting import around, self_time
from ...derive.blocking import Blocking
from ...derive.call_tree import CallTree
from ...derive.device_times import DeviceTimes, Timed
from ...derive.module_names import models_of, names_of, types_of
from ...derive.module_rows import Callers, backwards, call_sites_of, callers_of, calls_before, depths, passes_of
from ...derive.partition import Partition
from ...derive.spans import Spans, recorded_marks
from ...schema import COMMON, Column, Columns
from ...streams import (
    COLLECTIVES,
    COMPILED,
    DEVICE,
    EVAL_MODE,
    FAILED,
    FIRST_GRAPH,
    FORWARD,
    GRAPH,
    MARKS,
    NO_GRAD,
    OPTIMIZER,
    SPANS,
)  # fmt: skip
from ..declaration import Table

STAGES = ("forward", "backward", "step", "comm", "graph")
_STREAMS = (SPANS, MARKS, COLLECTIVES)  # what a row cannot do without; its times on a device may be lost before it


def derive(part: Partition) -> Columns:
    """Forward and step rows by their spans, then the backwards, then the waits for collectives."""
    return _Trace(part).columns()


class _Trace:
    """What the columns are made of; what only some of them need is made when the first one asks for it."""

    def __init__(self, part: Partition) -> None:
        self._part, spans, marks = part, Spans.of(part), recorded_marks(part)
        sites = call_sites_of(part, spans, marks)
        self._spans, self._tree = spans, CallTree.of(sites.parents, sites.subjects)
        self._engines, self._passes = passes_of(spans)
        self._devices, self._blocking = DeviceTimes(part, spans), Blocking(part, spans.autograd)
        back, self._back_on_device = backwards(
            part, spans, marks, sites, self._tree, self._passes, self._engines, self._devices, self._blocking
        )
        rows = np.flatnonzero(np.isin(spans.kind, (FORWARD, OPTIMIZER, GRAPH)))
        started = spans.start[rows], self._passes.start, self._blocking.start
        steps = list(map(part.timeline.step, started))
        steps[1] = steps[1][back.number]
        seen, self._bound, self._waits = (
            np.flatnonzero(part.sampled(step, _STREAMS)) if len(step) else np.zeros(0, np.int64) for step in steps
        )
        self._rows, self._back = rows[seen], back
        self._number = back.number[self._bound]
        self._steps = self._join(steps[0][seen], steps[1][self._bound], steps[2][self._waits])
        self._flags = spans.rows["flags"]

    def columns(self) -> Columns:
        spans, tree, rows, back, bound = self._spans, self._tree, self._rows, self._back, self._bound
        engines, flags, join, waits = self._engines[self._number], self._flags, self._join, self._waits
        names, types = names_of(self._part.log), types_of(self._part.log)
        groups = {_subject(id): str(group.get("name")) for id, group in self._part.log.groups.items()}
        blocking, is_wait = self._blocking, np.arange(len(self._steps)) >= len(rows) + len(bound)
        return {
            "start_ns": lambda: join(spans.start[rows], back.start[bound], blocking.start[waits]),
            "step": self._steps,
            "in_eval": lambda: join(
                spans.in_eval[rows],
                spans.in_eval[engines],
                self._part.timeline.in_eval(blocking.start[waits], blocking.thread[waits]),
            ),
            "seq": lambda: nullable(join(spans.rows["seq"][rows], spans.rows["seq"][engines]), ~is_wait),
            "micro_step": self._micro_step,
            "module": lambda: coded(self._subject, names | groups | self._graphs),
            "module_type": lambda: coded(self._subject, types),
            "parent": lambda: coded(self._caller, names),
            "root": lambda: coded(self._subject, models_of(self._part.log)),
            "depth": lambda: join(
                depths(spans, tree)[rows], np.maximum(tree.depth[back.module[bound]], 0), self._waiting.depth
            ),
            "stage": self._stage,
            "training": lambda: self._mode(EVAL_MODE),
            "grad": lambda: self._mode(NO_GRAD),
            "duration": lambda: self._seconds(self._own, lambda: (self._timed.own, self._timed.own_known)),
            "total_duration": lambda: self._seconds(self._whole, lambda: (self._timed.total, self._timed.total_known)),
            "host_duration": lambda: self._own / 1e9,
            "total_host_duration": lambda: self._whole / 1e9,
            **self._devices.memory(rows, len(bound) + len(waits)),
            "device": lambda: coded(self._subject, self._devices.devices),
            "thread": lambda: self._part.native_threads(
                join(spans.rows["thread"][rows], back.thread[bound], blocking.thread[waits])
            ),
            "recompute": lambda: join(spans.recompute[rows]),
            "compiled": self._compiled,
            "failed": lambda: join((flags[rows] & FAILED != 0) & ~spans.recompute[rows], flags[engines] & FAILED != 0),
        }

    def _join(self, *parts: Any) -> Any:
        """A column: the values of spans, backwards and waits; 0 or false for those that are left out."""
        counts = len(self._rows), len(self._bound), len(self._waits)
        missing = (np.zeros(count, parts[0].dtype) for count in counts[len(parts) :])
        return np.concatenate([*parts, *missing])

    def _seconds(self, host: Ints, on_device: Callable[[], tuple[Ints, Bools]]) -> Any:
        """On a device it is the device that waits: how long, the host does not see."""
        off_host = self._devices.off_host(self._subject)
        off_host[len(host) - len(self._waits) :] = self._blocking.on_device[self._waits]
        return self._devices.seconds(off_host, host, on_device)

    @cached_property
    def _subject(self) -> Any:
        return self._join(
            self._spans.subject[self._rows],
            self._tree.subject(self._back.module[self._bound]),
            _subject(self._blocking.group[self._waits]),
        )

    @property
    def _graphs(self) -> dict[int, str]:
        """Their names, by subject."""
        subjects = distinct(self._spans.subject[self._spans.kind == GRAPH]).tolist()
        return {subject: f"graph {FIRST_GRAPH - subject}" for subject in subjects}

    @cached_property
    def _caller(self) -> Any:
        spans, tree, rows = self._spans, self._tree, self._rows
        found = np.where(spans.caller[rows] == NONE, 0, spans.subject[spans.caller[rows]])
        again = spans.recompute[rows] & (found == 0)
        found = np.where(again, tree.subject(tree.parent[tree.index(spans.subject[rows])]), found)
        return self._join(found, tree.subject(tree.parent[self._back.module[self._bound]]), self._waiting.caller)

    @cached_property
    def _waiting(self) -> Callers:
        """The calls in which the thread was blocked."""
        waits = self._waits
        return callers_of(self._blocking.start[waits], self._blocking.thread[waits], self._spans, self._tree)

    @cached_property
    def _own(self) -> Any:
        spans, blocking = self._spans, self._blocking
        free = spans.end - spans.start
        if len(blocking):
            free = free - blocking.within(spans.start, spans.end, spans.rows["thread"])
        return self._join(self_time(spans.nesting, free)[self._rows], self._back.own[self._bound], self._blocked)

    @cached_property
    def _whole(self) -> Any:
        spans, rows = self._spans, self._rows
        return self._join(spans.end[rows] - spans.start[rows], self._back.total[self._bound], self._blocked)

    @property
    def _blocked(self) -> Ints:
        return (self._blocking.end - self._blocking.start)[self._waits]

    @cached_property
    def _timed(self) -> Timed:
        of_spans, of_backwards = self._devices.timed().of(self._rows), self._back_on_device().of(self._bound)
        columns = ((getattr(each, name) for each in (of_spans, of_backwards)) for name in Timed.__dataclass_fields__)
        return Timed(*(self._join(*column) for column in columns))

    def _mode(self, flag: int) -> Any:
        """Whether the outermost call around a row, or before its pass, lacked this flag; NULL where there is none."""
        before = calls_before(self._part, self._spans, self._passes)[self._number]
        root = self._join(self._spans.outermost_call[self._rows], before, self._waiting.outermost)
        return nullable(self._flags[root] & flag == 0, root != NONE) if len(self._flags) else root == NONE

    def _micro_step(self) -> Ints:
        """Backward passes begun in the step before each row; what runs inside a pass belongs with the pass."""
        starts = self._passes.start
        waits = self._blocking.start[self._waits]
        inside = around(waits, starts, self._passes.end)
        waits = np.where(inside == NONE, waits, np.append(starts, 0)[inside])
        times = self._join(self._spans.start[self._rows], starts[self._number], waits)
        before: Ints = np.searchsorted(starts, times) - np.searchsorted(starts, self._part.timeline.since(times))
        before[: len(self._rows)] -= self._spans.in_backward[self._rows]
        return before

    def _stage(self) -> Any:
        of_spans = np.select([self._spans.kind[self._rows] == kind for kind in (OPTIMIZER, GRAPH)], [2, 4], 0)
        stages = of_spans, np.ones(len(self._bound), np.int64), np.full(len(self._waits), 3)
        return choice(self._join(*stages), STAGES)

    def _compiled(self) -> Any:
        compiled = (self._flags & COMPILED) != 0
        subjects = distinct(self._spans.subject[compiled])
        return self._join(compiled[self._rows], np.isin(self._tree.subject(self._back.module[self._bound]), subjects))


def _subject(group: Any) -> Any:
    """A number for a group among those of modules, which are positive."""
    return -2 - group


_CLOCKS = "CUDA events on cuda, the host's clock on cpu"
_NOT_TIMED = (
    "On cuda: device_tap of probe.agents is off, the device has not got to it yet, no event was available, a graph "
    "was being captured, the module is on several devices, the marks of a pass are on several streams and do not rise, "
    "or retention has dropped it.  On devices other than cuda and cpu: always."
)
_NO_CALL = "Optimizer steps; a wait outside of calls."


def _memory(name: str, doc: str) -> Column:
    return Column(
        name,
        "DOUBLE",
        "MB",
        doc,
        "CUDA caching allocator",
        "On the CPU; in backward; same as total_duration; in all but the "
        "first step of each block of ten that is sampled, because reading it takes long.",
    )


TABLE = Table(
    name="python.torch_trace",
    doc="One row per module call, backward of a module, optimizer step, wait for collectives and replay of a CUDA "
    "graph, of each sampled step.  duration is self time: durations never overlap, so they can be summed; "
    "total_duration includes a module's children, and waits.",
    columns=(
        *COMMON,
        Column("seq", "BIGINT", "",
               "Order of completion in this process; the rows of one backward pass share the number of the pass.",
               "number of the span", "Stage comm."),
        Column("micro_step", "INTEGER", "", "Backward passes since the last step (gradient accumulation).",
               "passes of the autograd engine"),
        Column("module", "VARCHAR", "", "Qualified name as named_modules() gives it, without wrappers; for a root or "
               "an optimizer, its class name; of stage comm the name of the group, of stage graph the graph's number.  "
               "A model in a module that nobody calls, such as a LightningModule, goes by its name there.",
               "named_modules()",
               "A backward pass without a known module; a wait while several groups had operations under way.",
               "module of other ranks and steps, parent"),
        Column("module_type", "VARCHAR", "", "Class name.", "type()", "Same as module; stages comm and graph."),
        Column("parent", "VARCHAR", "", "Module whose call this one ran in.", "nesting of calls",
               "Outermost calls, optimizer steps, waits and replays outside of calls.",
               "module of the same rank, step and root"),
        Column("root", "VARCHAR", "", "The model that the module belongs to: the variable that holds its outermost "
               "module, else that module's class; a number after # distinguishes models of the same name.",
               "variables of the job's functions, when the module was named",
               "Optimizer steps, stages comm and graph, a backward pass without a known module."),
        Column("depth", "INTEGER", "", "Module calls around this one; 0 is the outermost.", "nesting of calls"),
        Column("stage", "VARCHAR", "", "forward, backward or step (of an optimizer); comm: a collective blocked the "
               "thread, which is in no module's duration; graph: a CUDA graph was replayed.",
               "kind of span; collectives, Work.wait, wait_tensor"),
        Column("training", "BOOLEAN", "", "Whether the model was in training mode: the outermost module of the call, "
               "or of the call before the pass.", "Module.training", _NO_CALL),
        Column("grad", "BOOLEAN", "", "Whether autograd was on in that call.  Validation is NOT training OR NOT grad.",
               "torch.is_grad_enabled()", _NO_CALL),
        Column("duration", "DOUBLE", "s", "Time of this module itself, without the modules it called, on its device; "
               "on cuda from the end of the work issued before it to the end of its own, including time spent waiting "
               "for the host.", _CLOCKS, f"{_NOT_TIMED}  Also a module that contains one that was not timed, or ones "
               "on other streams whose times overlap or are not within its own, and stage comm: the device waits, not "
               "the host; stage graph where the process uses several devices."),
        Column("total_duration", "DOUBLE", "s", "Time from entry to exit, including children, on its device.", _CLOCKS,
               _NOT_TIMED),
        Column("host_duration", "DOUBLE", "s", "duration on the host's clock.", "host's clock"),
        Column("total_host_duration", "DOUBLE", "s", "total_duration on the host's clock.", "host's clock"),
        _memory("allocated", "Device memory allocated at the end of the call (2^20 bytes)."),
        _memory("allocated_delta", "Memory gained or lost during the call."),
        _memory("max_allocated", "Peak of allocated memory until then, since the job last reset the peak."),
        _memory("reserved", "Memory the allocator had reserved at the end of the call."),
        Column("device", "VARCHAR", "", "Device of the module's parameters and buffers, else of the module around it, "
               "else the cuda device of its arguments: cpu, cuda:0, ...", "parameters, when the module was named",
               "Several devices, offloaded, not named yet, or no parameters anywhere and no arguments on cuda.",
               "device of host.gpu_trace of the same rank"),
        Column("thread", "BIGINT", "", "Native id of the thread.", "threading.get_native_id()",
               "The thread ended before it was noted.", "thread of python.dataloader_trace, native_id of python.stack"),
        Column("recompute", "BOOLEAN", "", "Whether activation checkpointing ran this forward again.",
               "forward inside a backward pass"),
        Column("compiled", "BOOLEAN", "", "Whether the row is a compiled region, whose inner modules have no rows.",
               "torch.compile"),
        Column("failed", "BOOLEAN", "", "Whether the call or the pass raised.  False where recompute is true: torch "
               "ends such calls by an exception, and one that fails, fails the pass.", "exceptions"),
    ),
    streams=(*_STREAMS, DEVICE),
    derive=derive,
    of_each_rank=True,
    by_step=True,
    in_blocks=True,
    in_batches=True,
    question="Which modules take the longest per call?",
    example="SELECT module, stage, AVG(duration) FROM python.torch_trace GROUP BY ALL ORDER BY 3 DESC LIMIT 5",
)  # fmt: skip
