"""Tables with planted rows, for tests of diagnosis rules: what a Connection answers, without a job."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from probe.diagnose.watched import Watched
from probe.host.facts import Facts
from probe.query.result import Coverage, Result
from probe.tables import TABLES

MS = 1e-3
_BEGUN_NS, _BEGUN = 10**15, datetime(2026, 1, 1)


@dataclass
class Planted:
    """A DuckDB with every table as declared, empty at first."""

    endpoint: str = "4242"
    notes: list[str] = field(default_factory=list)
    agents: list[Facts] = field(default_factory=lambda: [Facts(torch="2.13.0")])  # one process has no number
    coverage: Coverage = field(default_factory=lambda: Coverage((), (), (), 0.0))

    def __post_init__(self) -> None:
        self.database = duckdb.connect()
        for schema in {table.schema for table in TABLES}:
            self.database.execute(f"CREATE SCHEMA {schema}")
        for table in TABLES:
            columns = ", ".join(f'"{column.name}" {column.type}' for column in table.columns)
            self.database.execute(f"CREATE TABLE {table.name} ({columns})")

    def query(self, sql: str) -> Result:
        table = self.database.sql(sql).to_arrow_table()
        return Result(table, self.coverage, (), None)  # type: ignore[arg-type]  # no rule asks what it cost

    def plant(self, table: str, rows: Iterable[Mapping[str, Any]]) -> Planted:
        """Add rows; what they leave out is NULL, but rank is 0 and in_eval false."""
        known = {column.name for each in TABLES if each.name == table for column in each.columns}
        usual = {name: value for name, value in {"rank": 0, "in_eval": False}.items() if name in known}
        return self.insert(table, pa.Table.from_pylist([{**usual, **row} for row in rows]))

    def insert(self, table: str, planted: pa.Table) -> Planted:
        """Add rows as they are; DuckDB finds them by their name."""
        self.database.execute(f"INSERT INTO {table} BY NAME SELECT * FROM planted")
        return self

    def steps(
        self, count: int = 200, *, ranks: Sequence[int] = (0,), noise: float = 0.05, samples: int = 32, first: int = 1,
        extra: Mapping[int, float] | None = None, seed: int = 0, **phases: float,
    ) -> Planted:  # fmt: skip
        """Steps with these phases, in ms (data=60, forward=10 …), each with so much noise; every second block sampled.
        extra: step -> ms more in `other`."""
        random = np.random.default_rng(seed)
        names = ("data", "forward", "backward", "validation", "optimizer", "comm", "other")
        unknown = set(phases) - set(names)
        assert not unknown, unknown
        begun, rows = dict.fromkeys(ranks, _BEGUN_NS), []
        for step in range(first, first + count):
            sampled = step // 10 % 2 == 0
            for rank in ranks:
                of = {name: phases.get(name, 0.0) * MS * (1 + noise * random.standard_normal()) for name in names}
                of["other"] += (extra or {}).get(step, 0.0) * MS
                duration = sum(of.values())
                if not sampled:
                    of["other"] += of["forward"] + of["validation"]
                told = {f"{name}_duration": value for name, value in of.items()}
                if not sampled:
                    told["forward_duration"] = told["validation_duration"] = None  # type: ignore[assignment]
                rows.append(
                    {"rank": rank, "step": step, "duration": duration, "sampled": sampled, "eval_duration": 0.0,
                     "samples": samples if sampled else None, "start_ns": begun[rank], **told,
                     "time": _BEGUN + timedelta(microseconds=(begun[rank] - _BEGUN_NS) // 1000)},
                )  # fmt: skip
                begun[rank] += int(duration * 1e9)
        return self.plant("python.step_trace", rows)

    def profile(
        self, *stacks: tuple[str | None, float, Sequence[str]], steps: Iterable[int] = (10,), **of: Any
    ) -> Planted:  # fmt: skip
        """Samples of each of these steps: (phase, seconds, frames from the outermost, each as `function (file:line)`);
        the innermost frame of a file without a folder is the job's own.  They are of the training thread, unless `of`
        has other columns."""
        rows = []
        for step, (phase, seconds, frames) in itertools.product(steps, stacks):
            own = next((frame for frame in reversed(frames) if "/" not in frame), frames[-1])
            function, _, at = own.removesuffix(")").partition(" (")
            file, _, line = at.rpartition(":")
            file = file if "/" not in file else f"/x/site-packages/{file}"
            rows.append(
                {"step": step, "phase": phase, "thread": 1, "is_main": True, "function": function, "file": file,
                 "line": int(line), "stack": list(frames), "seconds": seconds, **of},
            )  # fmt: skip
        return self.plant("python.profile", rows) if rows else self

    def watched(self, first: int = 1, last: int = 10**6, **options: Any) -> Watched:
        return Watched(self, first, last, 25.0, **options)
