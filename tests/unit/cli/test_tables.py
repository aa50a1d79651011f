"""`probe tables`: the declarations of the tables, on a terminal and for programs."""

from __future__ import annotations

import csv
import json
import os
import pty
import subprocess
from contextlib import suppress
from io import StringIO
from pathlib import Path

import pytest

from probe.cli.entry import run
from probe.cli.output.table import render
from probe.cli.verbs.data.tables import formatted, of_all, of_table
from probe.tables import TABLES
from probe.tables.declaration import Table
from target import PROBE

Captured = pytest.CaptureFixture[str]


def in_a_terminal(*words: str, columns: int = 80) -> str:
    """What `probe WORDS` shows in a terminal of so many columns."""
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", 0) as terminal:
        command = [str(PROBE), *words]
        env = {**os.environ, "COLUMNS": str(columns), "NO_COLOR": "1"}
        process = subprocess.Popen(command, stdout=theirs, stderr=theirs, env=env)
        os.close(theirs)
        shown = b""
        with suppress(OSError):  # how a terminal says that its last writer has gone
            while piece := terminal.read(1 << 16):
                shown += piece
        assert process.wait() == 0
    return shown.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_the_columns_of_a_table_fit_into_80_and_nothing_is_cut(table: Table) -> None:
    header, _, *lines = render(of_table(table), 80)
    assert max(map(len, lines)) <= 80
    meanings = " ".join(line[header.index("meaning") :] for line in lines)
    wanted = " ".join(text for column in table.columns for text in (column.doc, *column.remarks))
    assert "".join(meanings.split()) == "".join(wanted.split())
    assert [line.split()[:2] for line in lines if line[0] != " "] == [[one.name, one.type] for one in table.columns]


def test_a_terminal_shows_what_a_row_is_the_columns_and_the_example() -> None:
    shown = in_a_terminal("tables", "step_trace")
    (table,) = (table for table in TABLES if table.name == "python.step_trace")
    assert max(map(len, shown.splitlines())) <= 80
    words = " ".join(shown.split())
    assert words.startswith(" ".join(f"{table.name}: {table.doc} column type unit meaning".split()))
    assert words.endswith(f"{table.question} {table.example}")


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_a_formatted_example_is_the_same_sql(table: Table) -> None:
    shown = formatted(table.example)
    assert shown.split() == table.example.split() and max(map(len, shown.splitlines())) <= 76


def test_the_list_of_tables_fits_into_80() -> None:
    shown = list(render(of_all(TABLES), 80))
    assert max(map(len, shown)) <= 80 and all(any(line.startswith(table.name) for line in shown) for table in TABLES)


def test_a_narrow_terminal_shows_one_field_a_line() -> None:
    lines = list(render(of_table(TABLES[0]), 40))
    assert max(map(len, lines)) <= 40 and len(lines) == 5 * len(TABLES[0].columns)


def test_json_has_the_whole_declaration_of_every_table(capfd: Captured) -> None:
    assert run(["tables", "--format", "json"]) == 0
    told = {each["table"]: each for each in json.loads(capfd.readouterr().out)}
    assert sorted(told) == sorted(table.name for table in TABLES)
    for table in TABLES:
        each = told[table.name]
        assert (each["row"], each["question"], each["example"]) == (table.doc, table.question, table.example)
        assert each["streams"] == list(table.streams)
        assert [tuple(column.values()) for column in each["columns"]] == [
            (one.name, one.type, one.unit or None, one.doc, one.null or None, one.source, one.joins or None)
            for one in table.columns
        ]


def test_json_of_one_table_has_that_table_only(capfd: Captured) -> None:
    assert run(["tables", "stack", "--format", "json"]) == 0
    (told,) = json.loads(capfd.readouterr().out)
    assert told["table"] == "python.stack"


def test_csv_of_a_table_is_a_line_a_column(capfd: Captured) -> None:
    assert run(["tables", "step_trace", "--format", "csv"]) == 0
    lines = list(csv.DictReader(StringIO(capfd.readouterr().out)))
    (duration,) = [line for line in lines if line["column"] == "duration"]
    assert duration["table"] == "python.step_trace" and duration["unit"] == "s"
    assert duration["source"] == "host's clock" and duration["null"] == "The step of the attach, an open step."


def test_a_file_gets_unwrapped_lines(tmp_path: Path, capfd: Captured) -> None:
    assert run(["tables", "step_trace", "-o", str(tmp_path / "table.txt")]) == 0
    lines = (tmp_path / "table.txt").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("duration ")]
    assert line.endswith("NULL: The step of the attach, an open step. From: host's clock.")


def test_the_rows_of_the_stack_verb_are_those_of_python_stack() -> None:
    from probe.cli.verbs.insight.stack import COLUMNS
    from probe.tables.python.stack import TABLE

    of_table = [column.name for column in TABLE.columns]
    assert [name for name in of_table if name not in ("host", "pid")] == list(COLUMNS)
