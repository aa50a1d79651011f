"""Jobs that hang, attached before and after that began; all kinds of them: tests/bench/hangs_of_all_kinds.py."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hangs import PAUSE_S, Job, hanging, started, told
from until import states, until

import probe as probe_api
from probe.diagnose.hang.looks import gather
from probe.host import agent_memory
from target import Probe, Start, Target

pytestmark = pytest.mark.alone  # it looks at the clock

pytest.importorskip("torch")

# what a rank does for 15 s while the other waits for it: the verdict, and where it is
WORKING = {
    "healthy_validates": ("slow", "rank 1 is running in healthy_validates (hanging.py:"),
    "healthy_compiles": ("compiling", "rank 1 is compiling in "),
    "healthy_saves": ("slow", "rank 1 is reading or writing in healthy_saves (hanging.py:"),
}
QUERY = "SELECT DISTINCT state, arrived, missing, unknown FROM probe.collectives WHERE state = 'in_flight'"
BEFORE = """SELECT rank, state, COUNT(*) AS n, LIST(DISTINCT operation_type ORDER BY operation_type) AS kinds,
MAX(age_ms) / 1e3 AS age_s, MAX(group_seq) AS number, COUNT(step) + COUNT(source) + COUNT(issue_us) AS known
FROM python.nccl_trace WHERE from_flight_recorder GROUP BY ALL"""


@pytest.fixture(scope="module")
def stuck(start_once: Start, probe: Probe) -> Target:
    """A training that stands in another thread than the main one."""
    job = start_once("pausing.py", "0", "80", ready="pauses")
    probe("attach", job.pid)
    job.wait_for("stands")
    return job


@pytest.fixture(scope="module")
def jobs(start_once: Start, probe: Probe, stuck: Target) -> dict[str, Job]:
    """They hang for QUIET_S, and so has what stands already; for longer where so long a pause was usual before."""
    kinds = {"sleeps": False, "no_send": True, "no_barrier": True, "healthy_fast": True}
    jobs = hanging(start_once, kinds, "no_barrier", probe)
    for kind in kinds.keys() - {"healthy_fast"}:
        until(lambda kind=kind: told(jobs[kind])["code"] != "not-hung")
    return jobs


def test_a_sleeping_rank_is_found_also_by_a_later_attach(jobs: dict[str, Job]) -> None:
    report = told(jobs["sleeps"])
    stacks = jobs["sleeps"].probe("stack").stdout
    assert (report["code"], report["ranks"]) == ("waiting", [1])
    assert "is blocked in sleeps (hanging.py:" in report["verdict"] and "missing: 1" in report["why"][0]
    assert "rank 1, MainThread:\n  sleeps (hanging.py:" in stacks and "ranks 0-1, Thread-1:" in stacks


def test_what_ranks_that_stand_still_wait_for_below_python_is_named(jobs: dict[str, Job]) -> None:
    job = jobs["sleeps"]
    report = json.loads(started(job.pid, "hang", "--native", "--json").stdout)
    assert report["ranks"] == [1] and "; below Python in " in report["verdict"] and "sleep" in report["verdict"]
    stack = started(job.pid, "stack", "--native").stdout
    below = stack.partition("rank 0, below Python:\n")[2].partition("\n\n")[0]
    assert "libtorch_cpu.so" in below and "(long)" not in below, stack
    assert not any(set(states(pid)) & {"T", "t"} for pid in job.ranks())  # both go on waiting


def test_a_rank_that_goes_on_is_not_stopped_for_a_look_below_python(jobs: dict[str, Job]) -> None:
    done = started(jobs["healthy_fast"].pid, "stack", "--native")
    assert "below Python" not in done.stdout and done.stderr.count(" goes on, and a look would stop it: ") == 2


def test_operations_from_before_the_attach_are_in_nccl_trace(jobs: dict[str, Job]) -> None:
    told = json.loads(jobs["sleeps"].probe("query", "--format", "json", BEFORE).stdout)
    before = {(row["rank"], row["state"]): row for row in told}
    assert sorted(before) == [(0, "done"), (0, "in_flight"), (1, "done")]
    assert before[0, "done"]["n"] >= before[1, "done"]["n"] > 10
    waits = before[0, "in_flight"]
    assert waits["kinds"] == ["all_reduce"] and waits["age_s"] > 3 and waits["known"] == 0
    assert waits["number"] == before[1, "done"]["number"] + 1


def test_a_rank_that_has_not_sent_is_reported(jobs: dict[str, Job]) -> None:
    report = told(jobs["no_send"])
    assert (report["code"], report["ranks"]) == ("waiting", [1])
    assert report["why"][0].startswith("recv from rank 1 in group 0 has been in flight on rank 0 for ")


def test_pauses_for_snippets_and_attaches_do_not_make_the_job_a_slow_one(jobs: dict[str, Job]) -> None:
    with probe_api.connect(str(jobs["no_send"].pid)) as connection:
        evidence = gather(connection._client, connection.endpoint, 1.0, 0.1)
    usual_s = evidence.usual_quiet_s
    assert usual_s is not None and usual_s < 0.6 * PAUSE_S
    for facts in map(agent_memory.facts, jobs["no_send"].ranks()):
        assert facts is not None
        at, moment = facts.attached_wall_ns, 20_000_000  # ns: the clock may have been read later
        assert evidence.pauses.gaps([at - moment, at + moment]) == []  # that was an attach
        assert evidence.pauses.gaps([at - 2 * moment, at - moment]) == [moment]


def test_without_torchs_recorder_a_mismatch_is_found_in_the_rows(jobs: dict[str, Job]) -> None:
    report = told(jobs["no_barrier"])
    assert (report["code"], report["ranks"]) == ("mismatch", [0, 1])
    assert "operation: barrier on rank 0, all_gather on rank 1" in report["verdict"]


def test_a_training_that_is_stuck_in_another_thread_is_found_there(
    stuck: Target, jobs: dict[str, Job], probe: Probe
) -> None:
    report = json.loads(probe(stuck.pid, "hang", "--json").stdout)
    assert "is blocked in train (pausing.py:" in report["verdict"] and "join" not in report["verdict"], report


def test_a_job_that_steps_is_not_hung_and_watch_ends_with_it(jobs: dict[str, Job]) -> None:
    job = jobs["healthy_fast"]
    assert told(job)["code"] == "not-hung"
    watching = job.start("hang", "--watch", "2")
    job.stop_rank(1)
    out, err = watching.communicate(timeout=60)
    assert watching.returncode == 10 and out.startswith("Verdict  Rank 1 is stopped")
    assert "[hung] Nothing has moved for 2 s." in err


def test_a_stopped_rank_has_stacks_and_rows_like_any_other(jobs: dict[str, Job]) -> None:
    job = jobs["healthy_fast"]
    job.stop_rank(1)
    stack = job.probe("stack", "--timeout", "1")
    assert "rank 0, MainThread:" in stack.stdout and "rank 1, MainThread:" in stack.stdout
    assert stack.stderr.endswith(": its stacks were read from its memory\n")
    frames = "SELECT DISTINCT rank FROM python.stack WHERE is_main ORDER BY rank"
    assert job.probe("query", "--timeout", "1", "--format", "csv", frames).stdout == "rank\n0\n1\n"
    rows = json.loads(job.probe("query", "--timeout", "1", "--format", "json", QUERY).stdout)
    assert len(rows) == 1 and rows[0]["state"] == "in_flight" and rows[0]["unknown"] == []
    assert 0 in rows[0]["arrived"] and {*rows[0]["arrived"], *rows[0]["missing"]} == {0, 1}  # out of its memory


@pytest.fixture(scope="module")
def working(start_once: Start, probe: Probe) -> dict[str, Job]:
    return hanging(start_once, dict.fromkeys(WORKING, True), run=probe)


@pytest.mark.parametrize("kind", WORKING)
def test_a_rank_that_works_while_the_others_wait_is_not_hung(working: dict[str, Job], kind: str) -> None:
    code, does = WORKING[kind]
    reports = list[Any]()
    until(lambda: reports.append(told(working[kind])) or reports[-1]["code"] == code, why=lambda: reports[-3:])
    assert does in reports[-1]["verdict"] and reports[-1]["ranks"] == [1]
    assert not [report for report in reports if report["hung"]]
