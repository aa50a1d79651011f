"""What fleet makes of SQL before Daft sees it: refused by name, or in words that mean the same to both."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from recorded import plant

from probe.errors import ProbeError, QueryError
from probe.record.fleet.fleet import Fleet
from target import Probe

STEPS = "python.step_trace"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    folder = tmp_path_factory.mktemp("runs")
    for job in ("a", "b"):
        plant(folder, STEPS, [{"step": 1}], job=job)
    return Fleet(str(folder))


@pytest.mark.parametrize(
    ("sql", "named"),
    [
        (f"SELECT median(duration) FROM {STEPS}", "median()"),
        (f"SELECT stddev(duration) FROM {STEPS}", "stddev()"),
        (f"SELECT rank FROM {STEPS} QUALIFY row_number() OVER (PARTITION BY rank) = 1", "QUALIFY"),
        (f"SELECT a.rank FROM {STEPS} a ASOF JOIN {STEPS} b ON a.rank = b.rank AND a.time >= b.time", "ASOF JOIN"),
        (f"SELECT a.rank FROM {STEPS} a JOIN {STEPS} b ON a.rank < b.rank", "JOIN but on equal columns"),
        (f"SELECT a.rank FROM {STEPS} a JOIN {STEPS} b USING (duration)", "JOIN on floating-point numbers"),
        (f"SELECT rank FROM {STEPS} WHERE step NOT IN (SELECT step FROM {STEPS})", "NOT EXISTS"),
        (f"SELECT rank, count(*) FROM {STEPS} GROUP BY ROLLUP (rank)", "ROLLUP"),
        (f"SELECT sum(step) OVER (PARTITION BY rank ORDER BY step ROWS 3 PRECEDING) FROM {STEPS}", "whole numbers"),
        (f"SELECT sum(duration) OVER (PARTITION BY rank ORDER BY step) FROM {STEPS}", "ROWS BETWEEN"),
        (f"SELECT sum(duration) OVER (ORDER BY step ROWS 3 PRECEDING) FROM {STEPS}", "OVER without PARTITION BY"),
        (f"SELECT step * 1.5 FROM {STEPS}", "exact numbers"),
        (f"SELECT step % rank FROM {STEPS}", "by a constant other than 0"),
        (f"SELECT CAST(duration AS BIGINT) FROM {STEPS}", "CAST of double AS BIGINT"),
        (f"SELECT rank FROM {STEPS} EXCEPT SELECT rank FROM {STEPS}", "EXCEPT"),
        (f"SELECT host LIKE 'a\\%' FROM {STEPS}", "backslashes"),
        (f"SELECT duration AS d, d + 1 FROM {STEPS}", "an alias beside"),
        (f"WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r) SELECT i FROM r, {STEPS}", "RECURSIVE"),
        ("SELECT 1; SELECT 2", "but one SELECT"),
        ("SELECT * FROM range(3)", "a table function"),
    ],
)
def test_what_daft_answers_otherwise_is_refused_with_its_name(fleet: Fleet, sql: str, named: str) -> None:
    with pytest.raises(QueryError) as refusal:
        fleet.translated(sql)
    assert refusal.value.code == "fleet-sql" and named in str(refusal.value)


@pytest.mark.parametrize(
    ("sql", "code"),
    [("SELECT nothing FROM step_trace", "unknown-column"), ("SELECT 1 FROM nowhere", "unknown-table"),
     ("SELEC", "query"), ("SELECT * FROM python.stack", "not-recorded")],
)  # fmt: skip
def test_wrong_sql_has_the_errors_of_query(fleet: Fleet, sql: str, code: str) -> None:
    with pytest.raises(QueryError) as error:
        fleet.translated(sql)
    assert error.value.code == code


@pytest.mark.parametrize(
    ("sql", "written"),
    [
        (f"SELECT rank FROM {STEPS} ORDER BY rank DESC", "DESC NULLS LAST"),
        (f"SELECT sum(step) FROM {STEPS}", "AS DECIMAL(38, 0)"),
        (f"SELECT count(*) FILTER (in_eval) FROM {STEPS}", "CASE WHEN COALESCE("),
        (f"SELECT rank FROM {STEPS} WHERE time > '2026-01-31'", "CAST('2026-01-31' AS TIMESTAMP)"),
    ],
)
def test_what_would_differ_is_written_in_other_words(fleet: Fleet, sql: str, written: str) -> None:
    assert written in fleet.translated(sql)[0]


def test_names_and_types_of_the_result_are_those_of_duckdb(fleet: Fleet) -> None:
    schema = fleet.translated(f"SELECT job, count(*), sum(step), avg(step) AS m FROM {STEPS} GROUP BY ALL")[2]
    assert [(each.name, str(each.type)) for each in schema] == [
        ("job", "string"), ("count_star()", "int64"), ("sum(step)", "decimal128(38, 0)"), ("m", "double"),
    ]  # fmt: skip


def test_a_folder_without_a_recording_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProbeError, match="holds no recording"):
        Fleet(str(tmp_path))
    with pytest.raises(ProbeError, match="reads folders"):
        Fleet("s3://bucket/runs")


@pytest.mark.skipif(find_spec("daft") is not None, reason="daft is installed")
def test_without_daft_the_command_says_what_to_install(fleet: Fleet, probe: Probe) -> None:
    done = probe("fleet", fleet.archive.folder, "query", f"SELECT COUNT(*) FROM {STEPS}", status=2)
    assert done.stderr.splitlines() == [
        "probe: [needs-package] fleet needs the package daft. Run: pip install 'daft>=0.7.26' 'ray>=2.60'"
    ]
