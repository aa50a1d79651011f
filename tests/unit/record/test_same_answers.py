"""A recording answers as the living job does: every third query of those that compare ways to answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from history import BEGAN, MEMORY, MS, History
from varied import QUERIES

import probe
from probe.connection import Connection
from probe.query.database import Database
from probe.record.flush import Flushes
from probe.record.sources import Windowed
from probe.record.stored import Names
from probe.snapshot.snapshot import Snapshot
from probe.tables import TABLES

HISTORY = History([50 + 7 * (step % 5) for step in range(60)], [150 + 40 * (step % 7) for step in range(60)])


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[Snapshot, Connection]]:
    """The job as it is at its end, and a recording of it that was flushed five times."""
    end = HISTORY.until + 100 * MS
    with TemporaryDirectory(dir=MEMORY) as name:
        recorder = Flushes(Path(name) / "job=x", Names(), lambda *_: None)
        for part in range(1, 6):
            now = BEGAN + (end - BEGAN) * part // 5
            job = Snapshot([Windowed(HISTORY.source(now), recorder.begin)])
            recorder.flush(job, ("agent-0", "agent-1") if part == 5 else (), stops=part == 5)
        recorder.moments(HISTORY.at(end))
        with probe.connect(name) as recording:
            recording.query("SELECT 1")  # starts its threads
            yield HISTORY.at(end), recording


@pytest.fixture(scope="module")
def database() -> Iterator[Database]:
    made = Database(TABLES)
    made.run("SELECT 1", HISTORY.at(HISTORY.until))
    yield made
    made.close()


# SUMMARIZE tells means as text, whose last digit depends on the order of a sum
@pytest.mark.parametrize("sql", [sql for sql in [*QUERIES[::3], *QUERIES[-4:]] if not sql.startswith("SUMMARIZE")])
def test_the_rows_are_the_same(sql: str, both: tuple[Snapshot, Connection], database: Database) -> None:
    job, recording = both
    live, recorded = database.run(sql, job), recording.query(sql).table
    assert recorded.column_names == live.column_names
    assert told(recorded) == told(live)


def told(table: Any) -> list[str]:
    """The rows in an order of their own, floats to the digits that do not depend on the order of a sum."""
    return sorted(repr([_rounded(value) for value in row.values()]) for row in table.to_pylist())


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return f"{value:.9g}"
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list) else value
