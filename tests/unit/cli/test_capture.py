"""What `probe capture` shows of several hosts, whose monotonic clocks differ."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import duckdb
import pytest

from probe.capture.capture import RankCapture
from probe.cli.entry import run

HOUR_NS = 3_600_000_000_000
BEGAN_NS = {0: 5 * HOUR_NS, 1: 900 * HOUR_NS}  # the host of rank 1 is up for longer
PLANTED = """CREATE SCHEMA python;
CREATE TABLE python.op_trace AS FROM (VALUES {operators})
_(rank, start_ns, operator, duration, device_duration, annotation);
CREATE TABLE python.module_cost AS SELECT *, 1.0 AS duration, NULL AS device_duration, 100 AS known_pct, 1 AS flops,
1 AS bytes, NULL AS peak_share, NULL AS peak_source, NULL AS bound, 'forward' AS stage, 'of ' || module AS processor
FROM (VALUES {modules}) _(rank, start_ns, module)"""


def captured(rank: int) -> RankCapture:
    return RankCapture(rank, 7, 1, "", BEGAN_NS[rank], BEGAN_NS[rank] + 1000, 0.1, 0.1, 0, 1, 0, "")


class Job:
    """Two ranks, each of which has been captured an hour ago, too."""

    def __init__(self) -> None:
        ages = {"new": 5, "old": -HOUR_NS}
        kept = [(rank, name, BEGAN_NS[rank] + ago) for rank in BEGAN_NS for name, ago in ages.items()]
        operators = ", ".join(f"({rank}, {at}, 'aten::{name}', 1.0, NULL, false)" for rank, name, at in kept)
        modules = ", ".join(f"({rank}, {at}, '{name}')" for rank, name, at in kept)
        self._database = duckdb.connect()
        self._database.execute(PLANTED.format(operators=operators, modules=modules))

    def capture(self, *_: object, **__: object) -> list[RankCapture]:
        return [captured(rank) for rank in BEGAN_NS]

    def query(self, sql: str, open_steps: bool) -> Any:
        return SimpleNamespace(notes=[], to_pylist=self._database.sql(sql).to_arrow_table().to_pylist)


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def connected(endpoint: str) -> Iterator[Job]:
        yield Job()

    monkeypatch.setattr("probe.cli.verbs.insight.capture.connected", connected)


def test_operators_of_older_captures_are_not_added_up(job: None, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["4242", "capture", "--format", "csv"]) == 0
    rows = [*csv.DictReader(io.StringIO(capfd.readouterr().out))]
    assert [(row["operator"], row["calls"]) for row in rows] == [("aten::new", "2")]


def test_modules_and_processors_of_older_captures_are_not_shown(job: None, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["4242", "capture", "--shapes"]) == 0
    out, err = capfd.readouterr()
    assert "forward  new" in out and "old" not in out
    assert "of new" in err and "of old" not in err
