"""Which rows a trace for Perfetto draws, as one query for each kind of track.

Called by perfetto.py.  A query of slices gives rank, host, pid, time, start_ns, length_ns (NULL if unknown), track and
name, may give in_flight and flow (the same number for slices that belong together), and all else as arguments; one of
counters gives a table's rows.  Invariant: no query leaves out a row of its tables but by step.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..schema import COMMON
from ..tables import TABLES

BASE = ("rank", "host", "pid", "time", "start_ns", "length_ns", "track", "name", "in_flight", "flow")
_WHERE = "rank, host, pid, time, start_ns"
# In a recording each agent of a rank counts its rows from 1.  An operation lies between the arrivals of its ranks, but
# for what the wall clock was set by between two flushes of the recorder.
_SLACK = "INTERVAL 1 SECOND"
_NS = "CAST(ROUND({} * 1e9) AS BIGINT) AS length_ns"


@dataclass(frozen=True)
class Kind:
    """One kind of track.  name: in the plural, also the category of its slices; sql: with {steps} for a condition;
    nests: a row may be a part of another; counts: on counters."""

    name: str
    tables: tuple[str, ...]
    sql: str
    nests: bool = False
    counts: bool = False

    @property
    def exists(self) -> bool:
        """Whether there are such tables: those of captures and of memory come with their verbs."""
        return {table.name for table in TABLES} >= set(self.tables)

    def query(self, steps: tuple[int, int] | None) -> str:
        return self.sql.format(steps="TRUE" if steps is None else f"step BETWEEN {steps[0]} AND {steps[1]}")


_SLICES = (
    Kind("steps", ("python.step_trace",), f"""
SELECT {_WHERE}, {_NS.format("duration")}, 'steps' AS track, 'step ' || step AS name, step, samples,
CAST(sampled AS VARCHAR) AS sampled FROM python.step_trace WHERE {{steps}}"""),
    Kind("phases", ("python.phase_trace",), f"""
SELECT {_WHERE}, {_NS.format("duration")}, 'phases' AS track, phase AS name, step FROM python.phase_trace
WHERE {{steps}}"""),
    Kind("modules", ("python.torch_trace",), f"""
SELECT {_WHERE}, {_NS.format("total_host_duration")}, 'thread ' || COALESCE(CAST(thread AS VARCHAR), '?') AS track,
COALESCE(module, '?') || CASE WHEN stage = 'forward' THEN '' ELSE ' (' || stage || ')' END AS name, step, stage,
module_type, device, CASE WHEN device <> 'cpu' THEN total_duration * 1e3 END AS device_ms
FROM python.torch_trace WHERE {{steps}}""", nests=True),
    Kind("loaders", ("python.dataloader_trace", "python.iterator_trace"), f"""
SELECT {_WHERE}, {_NS.format("wait_duration")}, 'loaders' AS track, COALESCE(loader, '?') AS name, step, ready,
outstanding FROM python.dataloader_trace WHERE {{steps}}
UNION ALL
SELECT {_WHERE}, {_NS.format("start_duration")}, 'loaders', COALESCE(loader, '?') || ' (start)', step, NULL, NULL
FROM python.iterator_trace WHERE {{steps}}"""),
    Kind("collectives", ("python.nccl_trace", "probe.collectives"), f"""
WITH issued AS (SELECT * FROM python.nccl_trace WHERE {{steps}}),
together AS (SELECT group_ranks, seqs, first_time - {_SLACK} AS since, last_time + {_SLACK} AS until,
ROW_NUMBER() OVER () AS number FROM probe.collectives WHERE {{steps}} AND LEN(arrived) > 1),
shared AS (SELECT UNNEST(group_ranks) AS member, UNNEST(seqs) AS its_seq, since, until, number FROM together)
SELECT {_WHERE}, CAST(ROUND(duration_ms * 1e6) AS BIGINT) AS length_ns,
'collectives' || COALESCE(' of ' || group_name, '') AS track,
operation_type || CASE WHEN state = 'in_flight' THEN ' (in flight)' ELSE '' END AS name,
state IS NOT DISTINCT FROM 'in_flight' AS in_flight, CASE WHEN time <= until THEN number END AS flow, step, group_seq,
bytes, dtype, busbw_gbps, peer, source, state
FROM issued ASOF LEFT JOIN shared ON rank = member AND seq = its_seq AND time >= since"""),
    Kind("kernels", ("python.kernel_trace",), f"""
SELECT {_WHERE}, {_NS.format("duration")}, CONCAT('device ', device, ', stream ', stream) AS track, kernel AS name,
step, module, operator, bytes FROM python.kernel_trace WHERE {{steps}}"""),
)  # fmt: skip


def _counters(table: str) -> Kind:
    return Kind("counters", (table,), f"SELECT * FROM {table} WHERE {{steps}}", counts=True)


_COUNTERS = map(_counters, ("host.process_trace", "host.gpu_trace", "python.memory_trace"))
KINDS = tuple(kind for kind in (*_SLICES, *_COUNTERS) if kind.exists)
NOT_COUNTED = tuple(column.name for column in COMMON)
