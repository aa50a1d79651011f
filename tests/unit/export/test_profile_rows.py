"""Which samples make a flame graph, on tables of samples as profiles leave them."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import duckdb
import pytest

from probe.errors import SilentError
from probe.export.profile_rows import Query, queried


class Job:
    """Its python.profile and python.step_trace; a step takes a fifth of a second."""

    def __init__(self) -> None:
        self.database = duckdb.connect()
        self.database.execute("""CREATE SCHEMA python; CREATE TABLE python.profile (rank BIGINT, start_ns BIGINT,
            time TIMESTAMPTZ, step BIGINT, phase VARCHAR, thread_name VARCHAR, is_main BOOLEAN, stack VARCHAR[],
            seconds DOUBLE); CREATE TABLE python.step_trace AS
            SELECT rank, step, 0.2::DOUBLE AS duration, TRUE AS sampled FROM range(3) a(rank), range(1000) b(step)""")

    def profile(self, begin_s: float, looks: int, rank: int = 0, rate: float = 100, name: str = "f") -> None:
        """begin_s: of the first look, on the host's clock, which is another one on each rank."""
        self.database.execute(
            """INSERT INTO python.profile
            SELECT $rank, (1e9 * (s + 7000 * $rank))::BIGINT, make_timestamptz((1e6 * s)::BIGINT), floor(s / 0.2),
              'forward', thread, thread = 'MainThread', [$name || ' (a.py:1)'], 1 / $rate
            FROM (SELECT $begin + n / $rate AS s FROM range($looks) looks(n)),
              (VALUES ('MainThread'), ('loader'), (NULL)) threads(thread)""",
            {"rank": rank, "begin": begin_s, "looks": looks, "rate": rate, "name": name},
        )

    def __call__(self, sql: str) -> Any:
        table = self.database.sql(sql).to_arrow_table()
        return SimpleNamespace(table=table, to_pylist=table.to_pylist)


@pytest.fixture
def job() -> Iterator[Job]:
    job = Job()
    yield job
    job.database.close()


def seen(query: Query, **choice: Any) -> list[tuple[int, str, float]]:
    """Rank, function and seconds of each row."""
    rows = queried(query, "Take one.", **choice).rows.to_pylist()
    return sorted((row["rank"], row["stack"][0][0], round(row["seconds"], 6)) for row in rows)


def test_the_last_profile_is_shown_of_the_ranks_that_it_reached(job: Job) -> None:
    job.profile(10, 100, 0, name="f")
    job.profile(10, 100, 1, name="f")
    job.profile(20, 200, 0, name="g")
    assert seen(job) == [(0, "g", 2.0)]
    job.profile(20.1, 200, 1, name="g")
    assert seen(job) == [(0, "g", 2.0), (1, "g", 2.0)]


def test_a_profile_may_begin_soon_after_another_and_look_once_a_second(job: Job) -> None:
    job.profile(10, 5, rate=1, name="f")
    job.profile(14.5, 4, rate=1, name="g")
    assert seen(job) == [(0, "g", 4.0)]


def test_steps_are_chosen_from_all_profiles(job: Job) -> None:
    job.profile(10.005, 100, name="f")
    job.profile(20.005, 100, name="g")
    assert seen(job, steps=(54, 100)) == [(0, "f", 0.2), (0, "g", 0.2)]
    with pytest.raises(SilentError, match="no profile of steps 60 to 70"):
        queried(job, "Take one.", (60, 70))


def test_threads_are_told_apart_only_if_all_are_wanted(job: Job) -> None:
    job.profile(10, 100)
    assert not queried(job, "Take one.").has_threads
    rows = queried(job, "Take one.", threads=True).rows.to_pylist()
    assert {row["thread"] for row in rows} == {"MainThread", "loader", "threads that Python did not start"}


def test_steps_are_those_that_the_looked_at_time_makes_up(job: Job) -> None:
    job.profile(10, 130, 0)
    job.profile(10, 100, 1)
    job.database.execute("UPDATE python.step_trace SET sampled = NULL, duration = 50 WHERE step = 54")  # the open one
    assert queried(job, "Take one.", threads=True).steps == {0: pytest.approx(6.5), 1: pytest.approx(5)}
    job.database.execute("DELETE FROM python.step_trace")
    assert queried(job, "Take one.").steps == {}
