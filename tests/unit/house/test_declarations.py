"""Every table and column declares its meaning, source, unit and join partners."""

from __future__ import annotations

import re

import pytest

from probe.arrays.arrow import ARROW_TYPES
from probe.schema import Column
from probe.tables import TABLES
from probe.tables.declaration import Table

UNITS = {"_ms": "ms", "_us": "µs", "_ns": "ns", "_mb": "MB", "_mb_s": "MB/s", "_pct": "%", "_gbps": "GB/s", "_s": "1/s",
         "_w": "W", "_mhz": "MHz", "_celsius": "°C", "duration": "s"}  # fmt: skip
SENTENCE = re.compile(r"\S.*[.…]")
COLUMNS = {table.name: {column.name for column in table.columns} for table in TABLES}
NAMES = set().union(*COLUMNS.values())
every_table = pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)


@every_table
def test_every_table_says_what_a_row_is_and_which_question_its_example_answers(table: Table) -> None:
    assert re.search(r"\b[Rr]ows? per\b", table.doc) and table.question.endswith("?") and table.name in table.example


@every_table
def test_every_column_has_a_sentence_and_a_source(table: Table) -> None:
    assert [each.name for each in table.columns if not (SENTENCE.fullmatch(each.doc) and each.source)] == []
    assert [each.name for each in table.columns if each.null and not SENTENCE.fullmatch(each.null)] == []
    assert {each.type for each in table.columns} <= set(ARROW_TYPES)


@every_table
def test_every_column_has_the_unit_in_its_name(table: Table) -> None:
    assert [each.name for each in table.columns if each.unit != UNITS.get(ending(each.name), each.unit)] == []


def ending(name: str) -> str:
    return max((end for end in UNITS if name.endswith(end)), key=len, default="")


@every_table
def test_every_join_partner_is_a_column(table: Table) -> None:
    assert [each.name for each in table.columns if each.joins and not exists(each)] == []


def exists(column: Column) -> bool:
    """Whether the join partners are columns: `thread of python.torch_trace, native_id of python.stack`."""
    parts = [part for part in column.joins.split(", ") if part.split()[0] not in ("with", "by")]
    named = [(part.split()[0], re.findall(r"(?:python|probe|host)\.\w+", part)) for part in parts]
    return all(name in NAMES and all(name in COLUMNS[other] for other in others) for name, others in named)
