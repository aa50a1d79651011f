"""Steps of a process that only calls modules, such as a server: each outermost call of a model is one.

Called by probe.snapshot.timeline where the agent says that nothing else ends a step.  The agent counts no calls; those
whose rows are overwritten are estimated when a process first reads it.  Invariant: from then on a call keeps its number
in that process, whatever the ring forgets.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..arrays.integers import Arrays, Ints
from ..host.facts import Facts
from ..streams import FORWARD, GRAPH, KIND_MASK, SAMPLED
from .log import Log
from .rows import Rows

CALL = "call"  # what the agent says of such a process
_SETTLED_NS = 2_000_000_000  # after its end, until a call will hardly turn out to be a part of one that still runs
_KNOWN: dict[str, tuple[int, int, int]] = {}  # by agent: when one of its calls began, its number, the next free one


@dataclass(frozen=True)
class _Calls(Arrays):
    """By start."""

    start: Ints
    end: Ints
    thread: Ints


def steps_of_calls(facts: Facts, log: Log, now_ns: int, spans: Rows, none: Rows) -> Rows:
    """A boundary at the end of each call, and one at the beginning of the first: what ran at the attach ends there.

    none: rows of STEPS, of which there are none.
    """
    calls = _outermost(spans, log)
    count = np.arange(len(calls.start) + len(calls.start[:1])) - 1
    made = type(none)(none.slots, np.zeros((len(count), len(none.slots)), np.int64))
    made["time_ns"][:] = np.concatenate([calls.start[:1], calls.end])
    made["count"][:] = count + _before(facts.id, calls, spans, now_ns)
    made["thread"][:] = calls.thread[np.maximum(count, 0)]
    made["flags"][:] = SAMPLED
    return made


def _outermost(spans: Rows, log: Log) -> _Calls:
    """Of root modules; in a job that only replays CUDA graphs, every replay of the first one.  Calls of a root within
    itself or another root count as one."""
    kind = spans["flags"] & KIND_MASK
    rows = np.flatnonzero(kind == FORWARD)
    roots = [serial for serial, module in log.modules.items() if module.get("root") in (serial, 0, None)]
    rows = rows[np.isin(spans["subject"][rows], roots)]
    if not len(rows) and (kind == GRAPH).any():
        rows = np.flatnonzero(spans["subject"] == spans["subject"][kind == GRAPH].max())
    rows = rows[np.argsort(spans["start_ns"][rows], kind="stable")]
    calls = _Calls(spans["start_ns"][rows], spans["end_ns"][rows], spans["thread"][rows])
    is_outermost = np.ones(len(rows), np.bool_)
    is_outermost[1:] = calls.start[1:] >= np.maximum.accumulate(calls.end)[:-1]
    return calls.of(is_outermost)


def _before(agent: str | None, calls: _Calls, spans: Rows, now_ns: int) -> int:
    """How many there were before these; keeps one of them, by which the next look at this agent numbers them."""
    lost = int(spans["seq"][0]) - 1 if len(calls.start) else 0
    before = round(lost * len(calls.start) / max(1, len(spans)))
    if lost and agent in _KNOWN:
        start, number, free = _KNOWN[agent]
        place = int(np.searchsorted(calls.start, start, side="right")) - 1
        before = number - place if place >= 0 else max(before, free)
    settled = int(np.searchsorted(calls.end, now_ns - _SETTLED_NS, side="right")) - 1
    if agent and settled >= 0:
        _KNOWN[agent] = int(calls.start[settled]), before + settled, before + len(calls.start)
    return before
