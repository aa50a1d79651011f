"""Every question of `probe ask` and every table's example, run on a real job of two ranks; and whether what they say of
it is so."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

import pytest
from until import until

import probe as library
from probe.cli.questions import NAMES, read
from probe.connection import Connection
from probe.tables import TABLES
from probe.tables.declaration import Table
from target import Probe, Start, Target

pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(240)  # the first of them waits for the job to have been recorded

STEPS = 50  # that all ranks have sampled
NEEDS_A_DEVICE = ("host.gpu_trace", "python.allocation_trace", "python.kernel_trace")
# This job compiles nothing, runs one epoch, and is not recorded.
TESTED_ELSEWHERE = {"python.compile_trace", "python.iterator_trace", "probe.events"}


@pytest.fixture(scope="module")
def recorded(start_once: Start, probe: Probe) -> Iterator[Connection]:
    """A connection to a job that has steps of all kinds, sampled and not, one with an eval among them."""
    job = start_once("varied.py", ranks=2)
    probe("attach", job.pid)
    probe(job.pid, "set", "sample=5")
    with library.connect(str(job.pid)) as connection:
        wait_for(connection, "SELECT COUNT(*) FILTER (NOT sampled) >= 10 AS enough FROM python.step_trace")
        probe(job.pid, "eval", "MICRO_STEPS")
        probe(job.pid, "set", "sample=1")
        wait_for(connection, f"SELECT COUNT(DISTINCT step) >= {STEPS} AS enough FROM python.torch_trace")
        wait_for(connection, "SELECT COUNT(core_wait_pct) >= 6 AS enough FROM host.process_trace")
        connection.profile(1)
        connection.capture(1, shapes=True)
        connection.trace("varied.py:Attention.forward", 1)
        yield connection


def wait_for(connection: Connection, sql: str) -> None:
    until(lambda: rows(connection, sql)[0]["enough"], 90, every_s=0.3, why=lambda: sql)


def rows(connection: Connection, sql: str) -> list[dict[str, Any]]:
    return connection.query(sql).to_pylist()


@pytest.mark.parametrize("name", NAMES)
def test_a_question_has_an_answer(name: str, recorded: Connection) -> None:
    result = recorded.query(read(name).sql)
    assert result.num_rows > 0 and not result.coverage.silent


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_the_example_of_a_table_returns_rows(table: Table, recorded: Connection) -> None:
    result = recorded.query(table.example)
    assert result.num_rows > 0 or table.name in {*NEEDS_A_DEVICE, *TESTED_ELSEWHERE}
    assert recorded.query(f"SELECT * FROM {table.name} LIMIT 0").column_names == [each.name for each in table.columns]


def all_rows(name: str) -> str:
    """The SQL of this question, without its limit."""
    return read(name).sql.replace("\nLIMIT 10", "")


def answer(recorded: Connection, name: str) -> list[dict[str, Any]]:
    return rows(recorded, all_rows(name))


def test_the_shares_of_a_step_add_up_to_all_of_it(recorded: Connection) -> None:
    for row in answer(recorded, "phases"):
        assert sum(value for name, value in row.items() if name.endswith("_pct")) == pytest.approx(100)


def test_times_of_modules_add_up_to_the_phases_of_the_steps(recorded: Connection) -> None:
    ended = "SELECT MIN(step) AS step FROM (SELECT MAX(step) AS step FROM python.torch_trace GROUP BY rank)"
    (last,) = rows(recorded, ended)  # by all ranks: both queries see the same steps
    some = f"step <= {last['step']} AND comm_duration IS NOT NULL AND sampled"
    phases = "forward_duration + backward_duration + validation_duration + optimizer_duration + comm_duration"
    (known,) = rows(recorded, f"SELECT AVG({phases}) * 1e3 AS ms FROM python.step_trace WHERE {some}")
    steps = "(SELECT rank, step, comm_duration, sampled FROM python.step_trace)"
    table = f"(SELECT t.* FROM python.torch_trace t JOIN {steps} s USING (rank, step) WHERE {some})"
    found = rows(recorded, all_rows("modules").replace("python.torch_trace", table))
    assert sum(row["pct"] for row in found) == pytest.approx(100)
    assert sum(row["ms_a_step"] for row in found) == pytest.approx(known["ms"], rel=1e-3)


def test_the_block_with_the_most_work_is_the_slowest(recorded: Connection) -> None:
    first, *others = answer(recorded, "backward")
    assert first["module"] == "h.2" and {"h.0", "h.1", "h.3", "wte", "lm_head"} <= {row["module"] for row in others}
    blocks = {row["module"]: row for row in answer(recorded, "self-time")}
    assert blocks["h.2.mlp.0"]["self_pct"] == 100 > 50 > blocks["h.2"]["self_pct"]


def test_the_rank_without_a_loader_worker_waits_longest_for_data(recorded: Connection) -> None:
    late, other = answer(recorded, "late-rank")
    assert (late["rank"], other["rank"]) == (1, 0) and late["late_ms"] > 0 > other["late_ms"]
    assert late["data_ms"] > other["data_ms"] and late["waits_ms"] < other["waits_ms"]
    first, second = answer(recorded, "loader")
    assert (first["rank"], first["num_workers"], first["none_ready_pct"]) == (1, 0, None)
    assert first["loader"] == second["loader"] == "train_loader"
    assert (second["rank"], second["num_workers"]) == (0, 1) and 0 <= second["none_ready_pct"] <= 100


def test_gradients_are_waited_for_in_the_last_micro_step(recorded: Connection) -> None:
    found = answer(recorded, "micro-steps")
    assert [(row["rank"], row["micro_step"]) for row in found] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert found[0]["comm_ms"] < found[1]["comm_ms"]


def test_each_optimizer_steps_once_a_step(recorded: Connection) -> None:
    found = answer(recorded, "optimizers")
    assert {(row["optimizer"], row["calls_a_step"]) for row in found} == {("AdamW", 1), ("SGD", 1)}


def test_rows_of_two_ranks_match_one_row_of_probe_collectives(recorded: Connection) -> None:
    found = answer(recorded, "arrivals")
    known = {(row["step"], row["group_seq"]): row for row in rows(recorded, "SELECT * FROM probe.collectives")}
    assert len(found) == 8
    for row in found:
        same = known[row["step"], row["group_seq"]]
        assert (same["operation_type"], same["bytes"]) == (row["operation_type"], row["bytes"])
        assert same["spread_ms"] == pytest.approx(abs(row["rank_1_later_ms"]), abs=0.01)


def test_memory_grows_by_as_much_as_the_job_keeps(recorded: Connection) -> None:
    for row in answer(recorded, "leak"):
        assert row["mb_per_1000_steps"] > 200  # it keeps 250


def test_a_step_is_joined_with_the_sample_after_it(recorded: Connection) -> None:
    steps, rest = all_rows("machine").split("\nSELECT s.rank")
    join = rest[rest.index("FROM steps s") : rest.index("\nGROUP BY")]
    between = "SELECT * FROM host.process_trace q WHERE q.rank = s.rank AND q.time >= s.time AND q.time < p.time"
    (found,) = rows(
        recorded,
        f"{steps}\nSELECT COUNT(*) AS n, BOOL_AND(p.rank = s.rank AND p.time >= s.time) AS after, "
        f"BOOL_OR(EXISTS ({between})) AS beyond {join}",
    )
    assert found["n"] > STEPS and found["after"] and not found["beyond"]


def attached_apart(job: Target, probe: Probe) -> None:
    """Its ranks, some seconds apart."""
    with open(f"/proc/{job.pid}/task/{job.pid}/children", encoding="ascii") as file:
        ranks = file.read().split()
    for pid in ranks:
        probe("attach", pid)
        time.sleep(2)


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.long), 2])
def test_every_question_and_example_holds_for_one_rank_and_for_ranks_attached_apart(
    start: Start, probe: Probe, ranks: int
) -> None:
    """With sample=auto."""
    job = start("varied.py", ranks=ranks)
    attached_apart(job, probe)
    with library.connect(str(job.pid)) as connection:
        wait_for(connection, "SELECT COUNT(DISTINCT step) >= 15 AS enough FROM python.torch_trace")
        for sql in [*(read(name).sql for name in NAMES), *(each.example for each in TABLES)]:
            told = [value for row in rows(connection, sql) for value in row.values() if type(value) is float]
            assert all(map(math.isfinite, told)), sql
        if ranks == 2:
            shared = "SELECT step FROM python.step_trace WHERE sampled GROUP BY step HAVING COUNT(*) = 2"
            wait_for(connection, f"SELECT COUNT(*) >= 5 AS enough FROM ({shared})")

            def is_told() -> bool:
                """A busy machine may hold up the other rank in the first few steps that both have."""
                late, other = answer(connection, "late-rank")
                return (late["rank"], other["rank"]) == (1, 0) and late["late_ms"] > 0 > other["late_ms"]

            until(is_told, why=lambda: answer(connection, "late-rank"))
