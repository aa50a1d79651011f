"""A recording answers as the living job does: queries of every kind, the questions of `probe ask` (the cookbook), and
the examples of the tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from history import MEMORY, History, recorded
from varied import QUERIES

import probe
from probe.cli.questions import NAMES, read
from probe.connection import Connection
from probe.query.database import Database
from probe.snapshot.snapshot import Snapshot
from probe.tables import TABLES

pytestmark = pytest.mark.slow
# no two steps take equally long, so that an order by duration is one
HISTORY = History([50 + 37 * step % 61 for step in range(60)], [150 + 40 * (step % 7) for step in range(60)])


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[Snapshot, Connection]]:
    """The job as it is at its end, and a recording of it."""
    with TemporaryDirectory(dir=MEMORY) as name:
        job = recorded(HISTORY, Path(name) / "job=x")
        with probe.connect(name) as recording:
            recording.query("SELECT 1")  # starts its threads
            yield job, recording


@pytest.fixture(scope="module")
def database() -> Iterator[Database]:
    made = Database(TABLES)
    made.run("SELECT 1", HISTORY.at(HISTORY.until))
    yield made
    made.close()


# SUMMARIZE tells means as text, whose last digit depends on the order of a sum; python.stack is not recorded
ASKED = [
    *(sql for sql in QUERIES if not sql.startswith("SUMMARIZE")),
    *(read(name).sql for name in NAMES if name != "main-thread"),
    *(table.example for table in TABLES if table.final != "never"),
]


@pytest.mark.parametrize("sql", ASKED)
def test_the_rows_are_the_same(sql: str, both: tuple[Snapshot, Connection], database: Database) -> None:
    job, recording = both
    live, stored = database.run(sql, job), recording.query(sql).table
    assert stored.column_names == live.column_names
    assert told(stored) == told(live)


def told(table: Any) -> list[str]:
    """The rows in an order of their own, floats to the digits that do not depend on the order of a sum."""
    return sorted(repr([_rounded(value) for value in row.values()]) for row in table.to_pylist())


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return f"{value:.9g}"
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list) else value
