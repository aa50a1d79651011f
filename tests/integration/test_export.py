"""A real job of two ranks as a trace for Perfetto: what is in it is what the tables have."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from trace_processor import answers
from until import until

import probe as library
from probe.connection import Connection
from target import Probe, Start

pytest.importorskip("torch")

FIRST = """SELECT MAX(first) AS step FROM (SELECT MIN(step) + 1 AS first FROM python.step_trace
WHERE comm_duration IS NOT NULL GROUP BY rank HAVING COUNT(*) > 15)"""
KINDS = {
    "steps": ("python.step_trace",), "phases": ("python.phase_trace",), "modules": ("python.torch_trace",),
    "loaders": ("python.dataloader_trace", "python.iterator_trace"), "collectives": ("python.nccl_trace",),
}  # fmt: skip
ERRORS = "SELECT name, value FROM stats WHERE severity <> 'info' AND value > 0"
COUNTS = "SELECT category AS kind, COUNT(*) AS slices FROM slice GROUP BY 1"
FLOWS = "SELECT COUNT(*) AS n FROM flow"
CALLS = """SELECT g.name AS rank, s.name AS name, p.name AS parent, COUNT(*) AS n FROM slice s LEFT JOIN slice p
ON s.parent_id = p.id JOIN track t ON s.track_id = t.id JOIN track g ON t.parent_id = g.id
WHERE s.category = 'modules' AND s.name NOT LIKE '%(comm)' AND s.name NOT LIKE '%(step)' GROUP BY 1, 2, 3"""


@dataclass(frozen=True)
class Traced:
    connection: Connection
    rows: list[dict[str, Any]]
    said: str
    file: Path
    steps: str

    def sql(self, text: str) -> list[dict[str, Any]]:
        return self.connection.query(text).to_pylist()


@pytest.fixture(scope="module")
def traced(start_once: Start, probe: Probe, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    job = start_once("straggling.py", "--step", "0.04", ranks=2)
    probe("attach", job.pid)
    file = tmp_path_factory.mktemp("traced") / "trace"
    with library.connect(str(job.pid)) as connection:
        probe(job.pid, "set", "sample=1")
        until(lambda: len(connection.query(f"{FIRST} HAVING COUNT(*) = 2")), 90, every_s=0.3)
        (first,) = connection.query(FIRST).column("step").to_pylist()
        steps = first, first + 9
        done = probe(job.pid, "export", "--perfetto", file, "--steps", "{}..{}".format(*steps), "--format", "json")
        yield Traced(connection, json.loads(done.stdout), done.stderr, file, "step BETWEEN {} AND {}".format(*steps))


def test_rows_are_slices_and_lie_where_the_tables_say(traced: Traced) -> None:
    errors, counts, (flows,), calls = answers(traced.file, ERRORS, COUNTS, FLOWS, CALLS)
    assert errors == []
    tables = {
        kind: sum(len(traced.sql(f"SELECT step FROM {table} WHERE {traced.steps}")) for table in names)
        for kind, names in KINDS.items()
    }
    told = {row["track"]: (row["rows"], row["slices"], row["left_out"]) for row in traced.rows if row["slices"]}
    assert told == {kind: (count, count, 0) for kind, count in tables.items() if count}
    assert {row["kind"]: row["slices"] for row in counts} == {kind: count for kind, count in tables.items() if count}
    (arrows,) = traced.sql(f"SELECT SUM(LEN(arrived) - 1) AS n FROM probe.collectives WHERE {traced.steps}")
    assert flows["n"] == arrows["n"] >= 10
    within = Counter({(row["rank"][:6], row["name"], row["parent"]): row["n"] for row in calls})
    recorded = traced.sql(f"""SELECT 'rank ' || rank AS rank, module || how AS module, parent || how AS parent, COUNT(*)
    AS n FROM (SELECT *, CASE stage WHEN 'forward' THEN '' ELSE ' (backward)' END AS how FROM python.torch_trace)
    WHERE {traced.steps} AND stage IN ('forward', 'backward') GROUP BY 1, 2, 3""")
    assert within == Counter({(row["rank"], row["module"], row["parent"]): row["n"] for row in recorded})
    assert traced.said.rstrip().endswith("slices of ranks 0-1. Open it at https://ui.perfetto.dev")


def test_phases_add_up_to_those_of_the_steps(traced: Traced) -> None:
    phases = ("data", "forward", "backward", "validation", "optimizer", "comm", "eval")
    sums = ", ".join(f"COALESCE(SUM(duration) FILTER (phase = '{name}'), 0) AS {name}" for name in phases)
    known = ", ".join(f"COALESCE({name}_duration, 0) AS {name}" for name in phases)
    added = traced.sql(
        f"SELECT rank, step, {sums} FROM python.phase_trace WHERE {traced.steps} GROUP BY 1, 2 ORDER BY 1, 2"
    )
    steps = traced.sql(f"SELECT rank, step, {known} FROM python.step_trace WHERE {traced.steps} ORDER BY 1, 2")
    assert added == [pytest.approx(step) for step in steps] and len(steps) == 20


@pytest.mark.parametrize("steps", ["5..3", "5", "a..b"])
def test_a_range_of_steps_is_checked(probe: Probe, steps: str) -> None:
    done = probe("export", "--perfetto", "trace", "--steps", steps, status=2)
    assert f"{steps!r} is not a range of steps such as 100..200." in done.stderr
