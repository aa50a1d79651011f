"""The snippets in docs/how-to/record.md read every table of a recording: as many rows and the same sums as the job has.

Polars and Daft are in the environment of `make fleet-test`, which runs this file, too."""

from __future__ import annotations

import math
import pickle
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from history import History, recorded

from probe.query.database import Database
from probe.record.stored import is_widened
from probe.schema import Column
from probe.tables import TABLES

HISTORY = History([40 + step for step in range(60)], [150 + 40 * (step % 7) for step in range(60)])
PAGE = Path(__file__).parents[3] / "docs/how-to/record.md"
SNIPPETS = {code.split()[1]: code for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)}
# the reader's own program: without probe, and each table as Arrow
PROGRAM = """
import pickle, sys
snippet, tables = pickle.load(sys.stdin.buffer)
found = {}
for table in tables:
    names = {}
    exec(snippet.replace("python.step_trace", table), names)
    rows = names["rows"]
    for method in ("to_arrow_table", "to_arrow"):
        rows = getattr(rows, method)() if hasattr(rows, method) else rows
    found[table] = rows
pickle.dump(found, sys.stdout.buffer)
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder of a recording, and the tables of the job itself."""
    folder = tmp_path_factory.mktemp("recording")
    snapshot, database = recorded(HISTORY, folder / "runs" / "job=exp7"), Database(TABLES)
    there = {path.name.partition("=")[2] for path in folder.glob("runs/job=exp7/table=*")}
    tables = {name: database.run(f"SELECT * FROM {name}", snapshot) for name in sorted(there)}
    database.close()
    return folder, tables


def test_the_page_shows_how_four_tools_read_it() -> None:
    assert set(SNIPPETS) == {"duckdb", "pyarrow", "polars", "daft"}


@pytest.mark.parametrize("tool", SNIPPETS)
def test_the_snippet_reads_every_table_as_the_job_has_it(tool: str, job: tuple[Path, dict[str, Any]]) -> None:
    if find_spec(tool) is None:
        pytest.skip(f"{tool} is not installed: make fleet-test")
    folder, tables = job
    command, given = [sys.executable, "-I", "-c", PROGRAM], pickle.dumps((SNIPPETS[tool], list(tables)))
    done = subprocess.run(command, input=given, capture_output=True, cwd=folder)
    assert done.returncode == 0, done.stderr.decode()
    found = pickle.loads(done.stdout)
    assert len(found) > 8 and sum(table.num_rows for table in found.values()) > 1000
    for name, table in tables.items():
        columns = [each for each in declared(name) if is_summed(table, each)]
        assert told(found[name], columns) == told(table, columns), name


def declared(name: str) -> tuple[Column, ...]:
    return next(table.columns for table in TABLES if table.name == name)


def is_summed(table: Any, column: Column) -> bool:
    """Columns of numbers; those that files have as text are not."""
    kind = table.schema.field(column.name).type
    return (
        column.name != "rank" and not is_widened(column) and (pa.types.is_integer(kind) or pa.types.is_floating(kind))
    )


def told(table: Any, columns: list[Column]) -> dict[Any, list[Any]]:
    """By rank: the number of rows, and of each column how many values there are and their sum."""
    values: dict[Any, list[dict[str, Any]]] = {}
    for row in table.to_pylist():
        values.setdefault(row.get("rank"), []).append(row)
    return {
        rank: [len(rows), *(summed([row[each.name] for row in rows]) for each in columns)]
        for rank, rows in values.items()
    }


def summed(values: list[Any]) -> tuple[int, float]:
    """Added exactly, so that the order does not matter."""
    known = [value for value in values if value is not None]
    return len(known), math.fsum(known)
