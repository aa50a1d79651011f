"""What Tab offers at a position, from the declarations of the tables."""

from __future__ import annotations

import pytest

from probe.cli.shell.completion import Candidate, candidates
from probe.tables import TABLES

OF_STEPS = {column.name for table in TABLES if table.name == "python.step_trace" for column in table.columns}


def offered(line: str) -> list[str]:
    """At the `|` of the line."""
    before, _, after = line.partition("|")
    return [each.text for each in candidates(before, after, TABLES)]


@pytest.mark.parametrize(
    ("line", "first"),
    [
        ("|", "SELECT"),
        ("sel|", "select"),
        ("SELECT dur| FROM python.step_trace", "duration"),
        ("SELECT b| FROM step_trace", "backward_duration"),
        ("SELECT * FROM tor|", "python.torch_trace"),
        ("SELECT * FROM python.to|", "python.torch_trace"),
        ("SELECT * FROM step_trace JOIN ag|", "probe.agents"),
        ("SELECT * FROM step_trace s, torch|", "python.torch_trace"),
        ("DESCRIBE host.g|", "host.gpu_trace"),
        ("SELECT s.d| FROM step_trace s", "s.duration"),
        ("SELECT * FROM step_trace AS s JOIN torch_trace t ON t.st|", "t.start_ns"),
        ("SELECT torch_trace.mo|", "torch_trace.module"),
        ("SELECT step f|", "from"),
        ("SELECT * FROM step_trace W|", "WHERE"),
        ("SELECT * FROM step_trace WHERE dura|", "duration"),
        ("SELECT av|", "avg("),
        ("SELECT 1; SELECT kep| FROM probe.drops; SELECT 2", "kept"),
        ("SELECT 'é', op| FROM step_trace", "optimizer_duration"),
    ],
)
def test_a_candidate_that_begins_with_the_word_comes_first(line: str, first: str) -> None:
    assert offered(line)[:1] == [first]


def test_columns_of_the_tables_in_the_statement_come_first() -> None:
    there = offered("SELECT | FROM python.step_trace; SELECT * FROM probe.drops")
    assert set(there[: len(OF_STEPS)]) == OF_STEPS
    assert "kept" not in there


def test_only_tables_are_offered_after_from_and_join() -> None:
    assert offered("SELECT * FROM |") == sorted(table.name for table in TABLES)


@pytest.mark.parametrize("line", ["SELECT 'FROM st|", "SELECT 1 -- st|", "SELECT /* st|", "SELECT nobody.st|"])
def test_nothing_is_offered_in_strings_comments_and_after_unknown_names(line: str) -> None:
    assert offered(line) == []


def test_a_name_is_found_by_one_of_its_parts() -> None:
    there = offered("SELECT dur| FROM python.step_trace")
    assert set(there) == {name for name in OF_STEPS if name.endswith("duration")}


def test_a_column_is_described_by_its_declaration() -> None:
    (rss,) = candidates("SELECT rss", " FROM python.step_trace", TABLES)
    assert rss.meta.startswith("DOUBLE in MB. Resident memory")
    assert Candidate("retention_mb", "in probe.drops") in candidates("SELECT ret", "", TABLES)
