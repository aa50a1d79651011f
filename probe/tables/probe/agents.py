"""probe.agents: who answers, who does not, and what could not be tapped."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

from ...arrays.arrow import columns_of
from ...schema import Column, Columns
from ...snapshot.call_steps import CALL
from ...snapshot.snapshot import Snapshot
from ...snapshot.source import Rank, RankLeft
from ...version import is_tested
from ..declaration import IDENTITY, MOMENT, TAPS, Table, identity

_FACTS = ("step_source", "world_size", "version", "python", "torch", "endpoint", "tcp")  # columns of the same names


def _record(rank: Rank) -> dict[str, Any]:
    facts = rank.facts
    return {
        **identity(rank),
        "state": "answers",
        "step": _step(rank),
        "why": facts.trouble or None,
        "attached_at": facts.attached_wall_ns // 1000 or None,
        "clock_offset_us": _us(facts.clock_offset_ns),
        "clock_error_us": _us(facts.clock_error_ns),
        "optimizer": facts.anchor,
        "cuda": facts.torch_cuda,
        "untested": not is_tested(facts.python, facts.torch) if facts.python and facts.torch else None,
        **{f"{tap.name}_tap": facts.taps.get(tap.name) for tap in TAPS},
        **{name: getattr(facts, name) for name in _FACTS},
        "name": facts.name or None,
    }


def _step(rank: Rank) -> int:
    """The agent counts boundaries; where each call is a step, the reader does."""
    if rank.facts.step_ends == CALL:
        with suppress(RankLeft):
            return rank.timeline.running
    return rank.facts.step


def _us(ns: int | None) -> float | None:
    return None if ns is None else ns / 1000


def derive(job: Snapshot) -> Columns:
    silent = {one.rank: {"state": "silent", "why": one.why} for one in job.read}
    records = {rank: _record(rank) for rank in [*job.ranks]}
    rows = [{**record, **silent.get(rank.rank, {})} for rank, record in records.items() if not rank.left]
    for one in job.silent:
        rows.append({"rank": one.rank, "pid": one.pid or None, "state": "silent", "why": one.why})
    return columns_of(TABLE.columns, rows)


_SILENT = "The rank does not answer."

TABLE = Table(
    name="probe.agents",
    doc="One row per rank: whether it answers, at which step it is, and what is not recorded on it and why.",
    columns=(
        *(replace(column, null=_SILENT) if column.name == "host" else column for column in IDENTITY),
        Column("state", "VARCHAR", "", "answers or silent.", "answer of the agent"),
        Column("why", "VARCHAR", "", "Why the rank is silent, or the agent's own last fault, or what its log lacks.",
               "agent", "Nothing is wrong."),
        Column("name", "VARCHAR", "", "Name of the job, an endpoint for commands.", "attach --name", "It has none."),
        Column("attached_at", "TIMESTAMP", "", "When the agent was attached, UTC.", "facts of the agent", _SILENT),
        Column("clock_offset_us", "DOUBLE", "µs", "How far the host's clock is ahead of the reader's; `time` is "
               "corrected by it if it exceeds clock_error_us. 0 on the reader's own host.",
               "the clock read between request and reply", _SILENT),
        Column("clock_error_us", "DOUBLE", "µs",
               "Possible error of clock_offset_us: half of the fastest round trip to that host.", "the reader's clock",
               _SILENT),
        Column("step", "BIGINT", "", "The step the rank is in now.", "boundaries", _SILENT, "step everywhere"),
        Column("step_source", "VARCHAR", "", "Where the step's number comes from: optimizer (its own count), trainer "
               "(its global_step), scheduler (its count, if it steps once per step), variable NAME (set step=NAME), "
               "group_seq (aligned with another rank) or attach (counted from the attach).", "agent", _SILENT),
        Column("optimizer", "VARCHAR", "", "The optimizer whose step() ends a step of the job; backward, if backward "
               "passes end it, because none does or they step them.", "optimizer hooks, autograd's engine",
               "Neither has been seen, or each outermost module call is a step."),
        Column("world_size", "INTEGER", "", "Ranks in the job.", "WORLD_SIZE or the default group", _SILENT),
        Column("version", "VARCHAR", "", "Version of the agent.", "agent", _SILENT),
        Column("python", "VARCHAR", "", "Version of Python in the target.", "sys.version_info", _SILENT),
        Column("torch", "VARCHAR", "", "Version of torch in the target.", "torch.__version__",
               "The target has not imported torch."),
        Column("cuda", "VARCHAR", "", "CUDA version torch was built for.", "torch.version.cuda",
               "A build without CUDA."),
        Column("untested", "BOOLEAN", "",
               "Whether this release has not been tested with this pair of Python and torch.", "list in the release",
               "The target has not imported torch."),
        *(
            Column(f"{tap.name}_tap", "VARCHAR", "", f"on, or why {tap.records} are not recorded.", "agent", tap.null)
            for tap in TAPS
        ),
        Column("endpoint", "VARCHAR", "", "The agent's socket as the target sees it.", "agent", _SILENT),
        Column("tcp", "VARCHAR", "", "Where its server accepts queries from other hosts.", "attach --listen",
               "Nowhere."),
    ),
    derive_job=derive,
    final=MOMENT,
    question="Which ranks answer, at which step are they, and where does the step's number come from?",
    example="SELECT rank, pid, state, step, step_source, torch FROM probe.agents ORDER BY rank",
)  # fmt: skip
