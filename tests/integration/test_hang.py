"""Jobs that hang, attached before and after that began; all kinds of them: tests/bench/hangs_of_all_kinds.py."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from hangs import Job, hanging, told

pytestmark = pytest.mark.alone  # it looks at the clock

pytest.importorskip("torch")

QUERY = "SELECT DISTINCT state, arrived, missing, unknown FROM probe.collectives WHERE state = 'in_flight'"


@pytest.fixture(scope="module")
def jobs() -> Iterator[dict[str, Job]]:
    with hanging({"sleeps": False, "healthy_fast": True}) as jobs:
        yield jobs


def test_a_rank_that_sleeps_is_waited_for_also_by_who_comes_later(jobs: dict[str, Job]) -> None:
    report = told(jobs["sleeps"])
    stacks = jobs["sleeps"].probe("stack").stdout
    assert (report["code"], report["ranks"]) == ("waiting", [1])
    assert "stands in sleeps (hanging.py:" in report["verdict"] and "not come: 1" in report["why"][0]
    assert "rank 1, MainThread:\n  sleeps (hanging.py:" in stacks and "ranks 0-1, Thread-1:" in stacks


def test_a_job_that_steps_is_not_hung_and_watching_it_ends_when_it_does(jobs: dict[str, Job]) -> None:
    job = jobs["healthy_fast"]
    assert told(job)["code"] == "not-hung"
    watching = job.start("hang", "--watch", "2")
    job.stop_rank(1)
    out, err = watching.communicate(timeout=30)
    assert watching.returncode == 10 and out.startswith("Verdict  Rank 1 is stopped")
    assert "[hung] Nothing has moved for 2 s." in err


def test_of_a_rank_that_does_not_answer_the_tool_for_it_is_named(jobs: dict[str, Job]) -> None:
    job = jobs["healthy_fast"]
    job.stop_rank(1)
    stack = job.probe("stack", "--timeout", "1", check=False)
    assert stack.returncode == 8 and "rank 0, MainThread:" in stack.stdout
    assert f"py-spy dump --pid {job.ranks()[1]}" in stack.stderr
    rows = json.loads(job.probe("query", "--timeout", "1", "--format", "json", QUERY).stdout)
    assert rows == [{"state": "in_flight", "arrived": [0], "missing": [], "unknown": [1]}]
