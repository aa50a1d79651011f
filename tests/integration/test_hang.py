"""Jobs that hang, attached before and after that began; all kinds of them: tests/bench/hangs_of_all_kinds.py."""

from __future__ import annotations

import json

import pytest
from hangs import hanging, told

pytestmark = pytest.mark.alone  # it looks at the clock

pytest.importorskip("torch")

QUERY = "SELECT state, arrived, missing, unknown FROM probe.collectives WHERE state = 'in_flight'"


def test_a_rank_that_sleeps_is_waited_for_and_its_stack_is_shown():
    with hanging("sleeps") as job:
        report = told(job)
        stacks = job.probe("stack").stdout
        rows = job.probe("query", "--format", "json", QUERY).stdout
    assert (report["code"], report["ranks"]) == ("waiting", [1])
    assert "stands in sleeps (hanging.py:" in report["verdict"]
    assert "rank 1, MainThread:\n  sleeps (hanging.py:" in stacks and "ranks 0-1, Thread-1:" in stacks
    assert json.loads(rows) == [{"state": "in_flight", "arrived": [0], "missing": [1], "unknown": []}]


def test_a_rank_that_holds_the_gil_is_named_although_it_does_not_answer():
    with hanging("c_loop") as job:
        report = told(job)
        stack = job.probe("stack", check=False)
    assert (report["code"], report["ranks"]) == ("waiting", [1])
    assert "does not answer" in report["verdict"] and report["next"][0].startswith("py-spy dump --pid")
    assert stack.returncode == 8 and "py-spy dump --pid" in stack.stderr


def test_groups_in_another_order_are_seen_by_who_comes_later():
    with hanging("another_order", attached_before=False) as job:
        report = told(job)
    assert (report["code"], report["ranks"], report["hung"]) == ("deadlock", [0, 1], True)


def test_a_job_that_steps_is_not_hung_and_watching_it_ends_when_it_does():
    with hanging("healthy_fast") as job:
        assert told(job)["code"] == "not-hung"
        watching = job.start("hang", "--watch", "3")
        job.stop_rank(1)
        out, err = watching.communicate(timeout=30)
    assert watching.returncode == 10 and out.startswith("Verdict  Rank 1 is stopped")
    assert "[hung] Nothing has moved for 3 s." in err
