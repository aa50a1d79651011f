"""Daft answers as DuckDB does: every query of the lists in this process, every fourth on a Ray, over two jobs."""

from __future__ import annotations

import pickle
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from answered import ANSWERED
from recorded import plant
from varied import QUERIES

import probe
from probe.connection import Connection
from probe.errors import QueryError
from probe.record.fleet.fleet import Fleet
from probe.record.stored import About

pytest.importorskip("daft", reason="daft is not installed: make fleet-test")
pytest.importorskip("ray", reason="ray is not installed: make fleet-test")

STEPS, MODULES = "python.step_trace", "python.torch_trace"


def plant_jobs(folder: Path) -> None:
    """Two jobs, one called by a number, with NULLs, files that do not count, and a column that files widen."""
    chance = random.Random(1)
    for job in ("a", "7"):
        for rank in range(3):
            for first in (0, 14, 28):
                steps = range(first, first + 14)
                plant(folder, STEPS, [step_row(step, chance) for step in steps], rank, job)
                plant(folder, MODULES, [module_row(step, n, chance) for step in steps for n in range(4)], rank, job)
        gone = plant(folder, STEPS, [{"step": 99, "duration": 9.0}], 0, job)
        plant(folder, STEPS, [], 0, job, about=About(replaces=(gone.name,)), kind="m1")
        plant(folder, "probe.collectives", [{"step": 4, "arrived": [0, 1]}], None, job)
        plant(folder, "python.nccl_trace", [{"step": 4, "device": "3"}], 0, job)


def step_row(step: int, chance: random.Random) -> dict[str, Any]:
    duration = None if chance.random() < 0.1 else chance.random()
    return {"step": step, "start_ns": 1000 * step, "duration": duration, "in_eval": chance.choice([True, False, None])}


def module_row(step: int, number: int, chance: random.Random) -> dict[str, Any]:
    return {
        "step": step, "start_ns": 1000 * step + number, "seq": number, "depth": number % 3, "duration": chance.random(),
        "module": chance.choice(["block0", "block1", "norm", "model", None]),
        "stage": chance.choice(["forward", "backward", "step"]), "parent": chance.choice([None, "model"]),
    }  # fmt: skip


@pytest.fixture(autouse=True)
def left_as_found() -> None:
    """Daft's threads stay until the last test."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("runs")
    plant_jobs(made)
    return made


@pytest.fixture(scope="module")
def both(folder: Path) -> Iterator[tuple[Fleet, Connection]]:
    with probe.connect(str(folder)) as recording:
        yield Fleet(f"file://{folder}"), recording


def told(table: Any) -> list[str]:
    """The rows in an order of their own, floats to the digits that do not depend on the order of a sum."""
    return sorted(repr([_rounded(value) for value in row.values()]) for row in table.to_pylist())


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return f"{value:.9g}"
    return [_rounded(each) for each in value] if isinstance(value, list) else value


# A window without a last criterion may be made in any order
UNDECIDED = {sql for sql in QUERIES if "PARTITION BY rank ORDER BY step)" in sql}


@pytest.mark.parametrize("sql", [*ANSWERED, *(sql for sql in QUERIES if sql not in UNDECIDED)])
def test_the_answer_is_that_of_duckdb_or_refused_by_name(sql: str, both: tuple[Fleet, Connection]) -> None:
    fleet, recording = both
    try:
        found = fleet.query(sql)
    except QueryError as error:
        assert error.code == "fleet-sql" and sql not in ANSWERED, error
        return
    same(found, recording.query(sql).table)


def same(found: Any, expected: Any) -> None:
    assert told(found) == told(expected)
    types = [[(each.name, str(each.type)) for each in table.schema] for table in (found, expected)]
    assert types[0] == types[1]


def test_on_ray_the_answers_are_the_same(folder: Path, both: tuple[Fleet, Connection], tmp_path: Path) -> None:
    command = [sys.executable, str(Path(__file__).parent / "on_ray.py"), str(folder), str(tmp_path / "answers")]
    done = subprocess.run(command, input="\n".join(ANSWERED[::4]), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answers = pickle.loads((tmp_path / "answers").read_bytes())
    assert list(answers) == list(ANSWERED[::4])
    for sql, found in answers.items():
        same(found, both[1].query(sql).table)


def test_rows_come_in_the_order_that_is_asked_for(both: tuple[Fleet, Connection]) -> None:
    fleet, recording = both
    sql = f"SELECT job, rank, step, duration FROM {STEPS} ORDER BY duration DESC, job, rank, step"
    assert fleet.query(sql).to_pylist() == recording.query(sql).to_pylist()


def test_the_command_answers_and_names_what_it_skips(folder: Path) -> None:
    (folder / "job=a" / f"table={STEPS}" / "rank=0" / "cut.parquet").write_bytes(b"PAR1")
    sql = f"SELECT job, COUNT(*) AS n FROM {STEPS} GROUP BY 1 ORDER BY 1"
    command = [sys.executable, "-m", "probe", "fleet", str(folder), "query", "--format", "csv", sql]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout == "job,n\n7,126\na,126\n", done.stderr
    assert "cut.parquet is skipped" in done.stderr


def test_a_cluster_that_is_not_there_is_told(folder: Path) -> None:
    command = [sys.executable, "-m", "probe", "fleet", str(folder), "query", "--address", "127.0.0.1:1",
               f"SELECT COUNT(*) FROM {STEPS}"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 3 and "[unreachable] No Ray cluster at 127.0.0.1:1" in done.stderr, done.stderr
