"""`probe set`: which steps hold module rows, in a real job, and what the reader says about the others."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from until import until

from probe.agent.steps.sampling import Sampling, is_chosen
from probe.host import agent_memory
from probe.host.facts import NO_FACTS
from probe.streams import BARE
from target import Probe, Start, Target, descendants

BLOCKS = """
    SELECT step // 10 AS block, count(DISTINCT step) AS steps, count(*) AS rows FROM python.torch_trace GROUP BY 1
"""


def records(probe: Probe, target: Target, sql: str) -> list[dict[str, Any]]:
    return list(json.loads(probe(target.pid, "query", "--format", "json", sql).stdout))


def step(probe: Probe, target: Target) -> int:
    return int(records(probe, target, "SELECT max(step) AS step FROM probe.agents")[0]["step"])


def recorded(probe: Probe, target: Target) -> dict[str, int]:
    """Rows of each stream so far."""
    return {row["stream"]: row["rows"] for row in records(probe, target, "SELECT stream, rows FROM probe.drops")}


def wait_for_step(probe: Probe, target: Target, wanted: int) -> None:
    agents = [pid for pid in (target.pid, *descendants(target.pid)) if agent_memory.facts(pid) is not None]

    def are_there() -> bool:
        """By their memory, which costs next to nothing to look at."""
        known = [agent_memory.facts(pid) or NO_FACTS for pid in agents]
        return all(facts.step_base + facts.count >= wanted for facts in known)

    until(are_there, 180, why=lambda: "the target does not step")
    until(lambda: step(probe, target) >= wanted, 60, why=lambda: "a query does not see its steps")


@pytest.fixture(scope="module")
def job(start_once: Start) -> Target:
    return start_once("loop.py", "--sleep", "0.002")


@pytest.fixture
def target(job: Target, probe: Probe) -> Iterator[Target]:
    """A job with an agent that has just come."""
    probe("attach", job.pid)
    yield job
    probe(job.pid, "detach")


def test_sampled_blocks_are_complete_and_others_empty(target: Target, probe: Probe) -> None:
    assert "sample" in probe(target.pid, "set").stdout
    assert "sample=5 is taken as 8" in probe(target.pid, "set", "sample=5").stderr
    begun = step(probe, target) // 10 + 2
    wait_for_step(probe, target, 10 * begun + 650)
    done = probe(target.pid, "query", "--format", "json", BLOCKS)
    blocks = {row["block"]: row for row in json.loads(done.stdout) if begun <= row["block"] < begun + 60}
    assert sorted(blocks) == [block for block in range(begun, begun + 60) if is_chosen(block, 8)]
    # a root and its three modules forward and back, and the optimizer
    assert {(row["steps"], row["rows"]) for row in blocks.values()} == {(10, 90)}
    assert re.search(rf"\d+ of \d+ steps were sampled.*; for all: probe {target.pid} set sample=1\n", done.stderr)


@pytest.mark.parametrize(("budget", "timed"), [("100%", True), ("0.01%", False)])
def test_phases_of_unsampled_steps_are_timed_within_the_budget(
    target: Target, probe: Probe, budget: str, timed: bool
) -> None:
    wait_for_step(probe, target, 50)
    probe(target.pid, "set", "sample=5", f"budget={budget}")
    begun = step(probe, target) + 2
    before = recorded(probe, target)
    wait_for_step(probe, target, begun + 150)
    after = recorded(probe, target)
    flags = Sampling()
    flags.set({"sample": 8}, None)
    blocks = range(begun // 10, begun // 10 + 600)
    bare = ", ".join(str(block) for block in blocks if flags.begin_step(10 * block, 10**9, lambda: None)[0] & BARE)
    sql = f"""
        SELECT sampled, count(*) AS steps, count(backward_duration) AS backwards,
            count(optimizer_duration) AS optimizers
        FROM python.step_trace WHERE step >= {begun} AND sampled IS NOT NULL AND step // 10 NOT IN ({bare})
        GROUP BY 1 ORDER BY 1
    """
    between, samples = records(probe, target, sql)
    assert samples["backwards"] == samples["optimizers"] == samples["steps"] > 0
    assert between["backwards"] == between["optimizers"] == between["steps"] * timed
    assert between["steps"] > 0
    # four calls, a pass and a step of the optimizer in one step of five, and in the rest those two or nothing
    assert ((after["spans"] - before["spans"]) / (after["steps"] - before["steps"]) > 2) is timed


def test_backward_can_be_turned_off_and_on(target: Target, probe: Probe) -> None:
    for setting, stages in (("off", {"forward", "step"}), ("on", {"forward", "backward", "step"})):
        probe(target.pid, "set", f"backward={setting}", "sample=1")
        begun = step(probe, target) + 2
        wait_for_step(probe, target, begun + 20)
        # the pass itself is always timed, and is the root's
        where = f"module <> 'Sequential' AND step BETWEEN {begun} AND {begun + 9}"
        sql = f"SELECT stage FROM python.torch_trace WHERE {where}"
        assert {row["stage"] for row in records(probe, target, sql)} == stages
        states = records(probe, target, "SELECT backward_tap FROM probe.agents")
        assert states == [{"backward_tap": "on" if setting == "on" else "off: set backward=off"}]


def test_overhead_compares_the_three_kinds_of_steps_and_is_null_while_there_are_few(
    target: Target, probe: Probe
) -> None:
    sql = "SELECT steps_of, steps, median_duration, over_bare FROM probe.overhead"
    probe(target.pid, "set", "sample=2")
    first = {row["steps_of"]: row for row in records(probe, target, sql)}
    assert list(first) == ["sampled", "unsampled", "bare"] and first["bare"]["over_bare"] is None
    # 64 blocks have a bare one, of which nine steps count: four are within five times 64 blocks, wherever these begin
    wait_for_step(probe, target, step(probe, target) + 3200)
    row = {row["steps_of"]: row for row in records(probe, target, sql)}
    assert row["bare"]["over_bare"] == 1.0 and row["bare"]["steps"] >= 30
    assert row["sampled"]["steps"] > 500 and row["unsampled"]["steps"] > 500
    assert all(0.001 < row[kind]["median_duration"] < 0.1 for kind in row)
    assert all(0.2 < row[kind]["over_bare"] < 5 for kind in row)  # true to the job's own steps, however noisy


def test_set_reaches_all_ranks_and_they_sample_the_same_blocks(start: Start, probe: Probe) -> None:
    job = start("loop.py", "--sleep", "0.002", ranks=2)
    probe("attach", job.pid)
    done = json.loads(probe(job.pid, "set", "sample=16", "--format", "json").stdout)
    assert [(row["rank"], row["sample"], row["every"]) for row in done] == [(0, "16", 16), (1, "16", 16)]
    begun = step(probe, job) // 10 + 2
    wait_for_step(probe, job, 10 * begun + 300)
    steps = range(10 * begun, 10 * begun + 251)
    sql = f"SELECT rank, step FROM python.torch_trace WHERE step BETWEEN {steps[0]} AND {steps[-1]} GROUP BY ALL"
    recorded = {rank: {row["step"] for row in records(probe, job, sql) if row["rank"] == rank} for rank in (0, 1)}
    assert recorded[0] == recorded[1] == {step for step in steps if is_chosen(step // 10, 16)} != set()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["sample=129"], "N from 1 to 128"),
        (["sampel=1"], "Did you mean sample?"),
        (["budget=-1"], "above 0"),
        (["backward=perhaps"], "on or off"),
    ],
)
def test_an_invalid_setting_changes_nothing_and_lists_the_valid_ones(
    target: Target, probe: Probe, words: list[str], told: str
) -> None:
    before = probe(target.pid, "set", "--format", "csv").stdout.split(",")[:4]
    done = probe(target.pid, "set", *words, status=2)
    assert told in done.stderr and done.stdout == ""
    assert probe(target.pid, "set", "--format", "csv").stdout.split(",")[:4] == before


def test_steps_are_counted_by_a_variable_of_the_job(start: Start, probe: Probe) -> None:
    job = start("pausing.py", "0", ready="pauses")  # SGD, which keeps no count
    probe("attach", job.pid)

    def ahead() -> int:
        """Of the job's own number, the step in which an eval runs."""
        done = probe(job.pid, "eval", "step")
        ran = re.search(r"ran at step (\d+)", done.stderr)
        assert ran is not None
        return int(ran[1]) - int(done.stdout)

    assert ahead() < 0
    probe(job.pid, "set", "step=step")
    assert ahead() == 1 and ahead() == 1  # the step that has just ended has the number
    sql = "SELECT step_source FROM probe.agents"
    assert json.loads(probe(job.pid, "query", "--format", "json", sql).stdout) == [{"step_source": "variable step"}]
    rows = "SELECT MIN(step) > 10 AS ok FROM python.step_trace"
    assert json.loads(probe(job.pid, "query", "--format", "json", rows).stdout) == [{"ok": True}]


def test_a_variable_that_grows_with_the_steps_is_proposed(start: Start, probe: Probe) -> None:
    job = start("pausing.py", "0", ready="pauses")
    probe("attach", job.pid)
    probe(job.pid, "eval", "huge = 10 ** 5000; counts = {'step': 1}")
    done = probe(job.pid, "set", "step=", status=2)
    assert "These grow by one each step: step. Run: probe ENDPOINT set step=step" in done.stderr, done.stderr


def test_a_variable_is_proposed_also_of_another_rank_than_the_first(start: Start, probe: Probe) -> None:
    job = start("straggling.py", "--late", "1", "--by", "0", "--in", "loader", "--step", "0.02", ranks=2)
    probe("attach", job.pid)
    _, pid = sorted(row["pid"] for row in records(probe, job, "SELECT pid FROM probe.agents ORDER BY rank"))
    done = probe(pid, "set", "step=", status=2)
    assert "These grow by one each step: step." in done.stderr, done.stderr


def test_what_counts_no_steps_is_refused(start: Start, probe: Probe) -> None:
    job = start("pausing.py", "0", ready="pauses")
    probe("attach", job.pid)
    for name, told in {
        "model": "no whole number", "no_such_name": "is not defined", "step + 1": "is not valid"
    }.items():  # fmt: skip
        done = probe(job.pid, "set", f"step={name}", status=None)
        assert done.returncode in (2, 6) and told in done.stderr, done.stderr


def test_all_ranks_count_by_the_same_variable(start: Start, probe: Probe) -> None:
    job = start("straggling.py", "--late", "1", "--by", "0", "--in", "loader", "--step", "0.02", ranks=2)
    probe("attach", job.pid)
    until(lambda: int(records(probe, job, "SELECT COUNT(*) AS n FROM python.step_trace")[0]["n"]) > 10)
    probe(job.pid, "eval", "mine = 5000")
    probe(job.pid, "set", "step=mine")
    sources = records(probe, job, "SELECT DISTINCT step_source AS source FROM probe.agents")
    assert sources == [{"source": "variable mine"}]
    assert records(probe, job, "SELECT MIN(step) > 4000 AS ok FROM probe.agents") == [{"ok": True}]
