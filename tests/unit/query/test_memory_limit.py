"""How much memory DuckDB has in a command."""

from __future__ import annotations

from pathlib import Path

import pytest
from limited import Cgroup, put_into

from probe.query.duckdb_session import DuckDBSession


def memory_limit() -> str:
    session = DuckDBSession()
    try:
        found = session.connection.execute("SELECT current_setting('memory_limit')").fetchone()
    finally:
        session.close()
    return str(found and found[0])


def test_duckdb_takes_half_of_what_a_container_that_is_ended_as_a_whole_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = memory_limit()
    put_into(Cgroup(most=8192, used=7992, as_one=True), folder=tmp_path, monkeypatch=monkeypatch)
    assert memory_limit() == "100.0 MiB"
    put_into(Cgroup(most=8192, used=7992), folder=tmp_path, monkeypatch=monkeypatch)
    assert memory_limit() == usual


@pytest.mark.parametrize("used", [8192, 8191])
def test_duckdb_works_in_a_container_that_has_next_to_nothing_left(
    used: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_into(Cgroup(most=8192, used=used, as_one=True), folder=tmp_path, monkeypatch=monkeypatch)
    assert memory_limit() == "64.0 MiB"
