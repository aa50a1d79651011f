"""python.torch_trace: one row per module call, per backward of a module and per optimizer step.

Made of spans (calls, engine passes, optimizer steps) and of the marks that autograd leaves; the reading
of both is in probe.module_rows.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ..arrow import choice, coded
from ..backward import Passes
from ..device_times import DeviceTimes, Timed
from ..module_rows import backwards, depths, passes_of, places_of
from ..nesting import NONE, Bools, Ints, self_time
from ..raw import Raw
from ..schema import COMMON, Column, Columns, Table
from ..spans import Spans
from ..streams import COMPILED, DEVICE, FAILED, FORWARD, MARKS, OPTIMIZER, SAMPLED, SPANS
from ..tree import Tree

STAGES = ("forward", "backward", "step")
_STREAMS = (SPANS, MARKS)  # what a row cannot do without; its times on a device may be lost before it


def derive(raw: Raw) -> Columns:
    """Forward and step rows by their spans, then the backwards."""
    spans = Spans.of(raw)
    places = places_of(raw, spans)
    tree = Tree.of(places.parents, places.subjects)
    engines, passes = passes_of(spans)
    devices = DeviceTimes(raw, spans)
    back, back_on_device = backwards(raw, spans, places, tree, passes, engines, devices)
    rows = np.flatnonzero((spans.kind == FORWARD) | (spans.kind == OPTIMIZER))
    pass_step = raw.timeline.step(passes.start)
    steps = (raw.timeline.step(spans.start[rows]), pass_step[back.number])
    seen = [np.flatnonzero(_seen(raw, step)) for step in steps]
    rows, bound = rows[seen[0]], seen[1]
    both = _Both(len(rows), len(bound))
    whole_spans = spans.end - spans.start
    flags, number = spans.rows["flags"], back.number[bound]
    compiled = (flags & COMPILED) != 0
    names, types = _names(raw, "name"), _names(raw, "type")
    backs = np.zeros(len(bound), np.bool_)

    @cache
    def subject() -> Any:
        return both.join(spans.subject[rows], tree.subject(back.module[bound]))

    @cache
    def caller() -> Any:
        found = np.where(spans.caller[rows] == NONE, 0, spans.subject[spans.caller[rows]])
        again = spans.recompute[rows] & (found == 0)
        found = np.where(again, tree.subject(tree.parent[tree.index(spans.subject[rows])]), found)
        return both.join(found, tree.subject(tree.parent[back.module[bound]]))

    @cache
    def own() -> Any:
        return both.join(self_time(spans.nesting, whole_spans)[rows], back.own[bound])

    @cache
    def whole() -> Any:
        return both.join(whole_spans[rows], back.total[bound])

    @cache
    def timed() -> Timed:
        return devices.timed().of(rows).followed_by(back_on_device().of(bound))

    return {
        "start_ns": lambda: both.join(spans.start[rows], back.start[bound]),
        "step": both.join(steps[0][seen[0]], steps[1][bound]),
        "in_eval": lambda: both.join(spans.in_eval[rows], spans.in_eval[engines][number]),
        "seq": lambda: both.join(spans.rows["seq"][rows], spans.rows["seq"][engines][number]),
        "micro_step": lambda: (
            _micro_step(raw, passes, both.join(spans.start[rows], passes.start[number]))
            - both.join(spans.recompute[rows], backs)
        ),
        "module": lambda: coded(subject(), names),
        "module_type": lambda: coded(subject(), types),
        "parent": lambda: coded(caller(), names),
        "root": lambda: coded(subject(), _models(raw)),
        "depth": lambda: both.join(depths(spans, tree)[rows], np.maximum(tree.depth[back.module[bound]], 0)),
        "stage": lambda: choice(
            both.join(np.where(spans.kind[rows] == OPTIMIZER, 2, 0), np.ones(len(bound), np.int64)), STAGES
        ),
        "duration": lambda: devices.seconds(subject(), own(), lambda: (timed().own, timed().own_known)),
        "total_duration": lambda: devices.seconds(subject(), whole(), lambda: (timed().total, timed().total_known)),
        "host_duration": lambda: own() / 1e9,
        "total_host_duration": lambda: whole() / 1e9,
        **devices.memory(rows, len(bound)),
        "device": lambda: coded(subject(), devices.devices),
        "thread": lambda: raw.native_threads(both.join(spans.rows["thread"][rows], back.thread[bound])),
        "recompute": lambda: both.join(spans.recompute[rows], backs),
        "compiled": lambda: both.join(compiled[rows], np.isin(subject()[len(rows) :], spans.subject[compiled])),
        "failed": lambda: both.join((flags[rows] & FAILED) != 0, (flags[engines][number] & FAILED) != 0),
    }


def _seen(raw: Raw, steps: Ints) -> Bools:
    """All rows of sampled steps and none of others: sums over a step that lacks its forwards would not be true."""
    timeline = raw.timeline
    sampled: Bools = (timeline.flags(steps) & SAMPLED) != 0
    if not raw.job.open_steps:
        sampled &= timeline.finished(steps)
    return sampled & timeline.visible(steps, _STREAMS)


class _Both:
    """Rows of spans followed by rows of backwards."""

    def __init__(self, spans: int, backwards: int) -> None:
        self.length = spans + backwards

    def join(self, of_spans: Any, of_backwards: Any) -> Any:
        return np.concatenate([of_spans, of_backwards])


def _micro_step(raw: Raw, passes: Passes, times: Ints) -> Ints:
    """Backward passes begun in the step before each moment; what runs inside a pass belongs with the pass."""
    before = np.searchsorted(passes.start, times)
    result: Ints = before - np.searchsorted(passes.start, raw.timeline.since(times))
    return result


def _names(raw: Raw, what: str) -> dict[int, str]:
    known = {**raw.log.modules, **raw.log.optimizers}
    return {serial: str(thing[what]) for serial, thing in known.items() if thing.get(what)}


def _models(raw: Raw) -> dict[int, str]:
    """What the model of each module is called."""
    modules = raw.log.modules
    roots = {serial: modules.get(module.get("root") or serial, module) for serial, module in modules.items()}
    return {serial: str(root.get("model") or root.get("type")) for serial, root in roots.items()}


_CLOCKS = "CUDA events on cuda, else the host's clock"
_NOT_TIMED = (
    "On cuda: the device has not come to it yet, no event was to be had, a graph was being captured, the module is on "
    "several devices, or retention has dropped it."
)


def _memory(name: str, doc: str) -> Column:
    return Column(name, "DOUBLE", "MB", doc, "CUDA caching allocator", "On the CPU; in backward; as total_duration.")


TABLE = Table(
    name="python.torch_trace",
    doc="One row per module call, per backward of a module and per optimizer step, of each sampled step.  duration "
    "is self time, so that sums are true; a module with its children is total_duration.",
    columns=(
        *COMMON,
        Column(
            "seq",
            "BIGINT",
            "",
            "Order of completion in this process; the rows of one backward pass share the number of the pass.",
            "number of the span",
        ),
        Column(
            "micro_step",
            "INTEGER",
            "",
            "Backward passes since the last step (gradient accumulation).",
            "passes of the autograd engine",
        ),
        Column(
            "module",
            "VARCHAR",
            "",
            "Qualified name as named_modules() gives it, without wrappers; a root and an optimizer go by their "
            "class name.",
            "named_modules()",
            "A backward pass of no known module.",
            "module of other ranks and steps, parent",
        ),
        Column("module_type", "VARCHAR", "", "Class name.", "type()", "As module."),
        Column(
            "parent",
            "VARCHAR",
            "",
            "Module whose call this one ran in.",
            "nesting of calls",
            "Outermost calls, optimizer steps.",
            "module of the same rank, step and root",
        ),
        Column(
            "root",
            "VARCHAR",
            "",
            "The model that the module is of: the variable that holds its outermost module, else the class of that; "
            "a number after # tells models apart that would have one name.",
            "variables of the job's functions, when the module was named",
            "Optimizer steps, a backward pass of no known module.",
        ),
        Column("depth", "INTEGER", "", "Module calls around this one; 0 is the outermost.", "nesting of calls"),
        Column("stage", "VARCHAR", "", "forward, backward or step.", "kind of span"),
        Column(
            "duration",
            "DOUBLE",
            "s",
            "Time of this module itself, not of modules it called, on its device; on cuda from the end of what was "
            "issued before it to the end of what it issued, waiting for the host included.",
            _CLOCKS,
            f"{_NOT_TIMED}  So is a module that holds one that was not timed.",
        ),
        Column(
            "total_duration",
            "DOUBLE",
            "s",
            "Time from entry to exit, children included, on its device.",
            _CLOCKS,
            _NOT_TIMED,
        ),
        Column("host_duration", "DOUBLE", "s", "duration on the host's clock.", "host's clock"),
        Column("total_host_duration", "DOUBLE", "s", "total_duration on the host's clock.", "host's clock"),
        _memory("allocated", "Memory of the device held at the end of the call (2^20 bytes)."),
        _memory("allocated_delta", "Memory gained or lost during the call."),
        _memory("max_allocated", "Most memory held until then, since the job last reset that count."),
        _memory("reserved", "Memory the allocator had reserved at the end of the call."),
        Column(
            "device",
            "VARCHAR",
            "",
            "Device of the module's parameters and buffers, else of the module around it, else the cuda device of its "
            "arguments: cpu, cuda:0, ...",
            "parameters, when the module was named",
            "Several devices, offloaded, not named yet, or no parameters anywhere and no arguments on cuda.",
            "device of host.gpu_trace of the same rank",
        ),
        Column(
            "thread",
            "BIGINT",
            "",
            "Native id of the thread.",
            "threading.get_native_id()",
            "A thread that ended before it was noted.",
            "thread of python.dataloader_trace, native_id of python.stack",
        ),
        Column(
            "recompute",
            "BOOLEAN",
            "",
            "Forward run again by activation checkpointing.",
            "forward inside a backward pass",
        ),
        Column(
            "compiled", "BOOLEAN", "", "The row is a compiled region; its inner modules give no rows.", "torch.compile"
        ),
        Column("failed", "BOOLEAN", "", "The call raised.", "exceptions"),
    ),
    streams=(*_STREAMS, DEVICE),
    derive=derive,
    by_step=True,
    question="Which modules take longest, a call?",
    example="SELECT module, stage, AVG(duration) FROM python.torch_trace GROUP BY ALL ORDER BY 3 DESC LIMIT 5",
)
