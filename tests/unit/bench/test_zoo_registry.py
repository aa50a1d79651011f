"""The zoo's registry and its scripts name the same jobs, and a report is judged by what was planted."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from targets.sick.registry import CODES, HERE, JOBS, NOT_PLANTED, Job, without

from probe.diagnose.rules import ON_TABLES

ZOO = HERE.parents[1] / "bench" / "zoo.py"
ON_PLANTED_TABLES = HERE.parents[1] / "unit" / "diagnose"
STATES = {"hung", "compiling", "idle", "ended", "slow", "unknown"}  # Diagnosis.state

SICK = Job("loading.py", "input_bound", ("input-bound",))
HEALTHY = Job("loading.py", "healthy")


def test_there_are_enough_of_each_sort_and_every_code_is_planted() -> None:
    assert len({job.name for job in JOBS}) == len(JOBS)
    assert len([job for job in JOBS if job.codes]) >= 30 and len([job for job in JOBS if not job.codes]) >= 16
    assert {code for job in JOBS for code in job.codes} == set(CODES)


def test_every_code_that_why_knows_is_planted_or_has_a_reason_why_not() -> None:
    known = {rule.code for rule in ON_TABLES} | STATES
    assert {*CODES} | NOT_PLANTED.keys() == known and not {*CODES} & NOT_PLANTED.keys()


@pytest.mark.parametrize("code", sorted(NOT_PLANTED.keys() - STATES))
def test_a_rule_without_a_job_has_a_sick_one_and_a_healthy_one_in_planted_tables(code: str) -> None:
    text = "".join(each.read_text(encoding="utf-8") for each in sorted(ON_PLANTED_TABLES.glob("test_*.py")))
    rule = code.replace("-", "_").upper()
    assert re.search(rf"\(told,\) = found\({rule}, |one\({rule}\.find\(", text)
    assert re.search(rf"assert not (found\({rule}, |list\({rule}\.find\()", text)


def test_a_healthy_job_is_called_so() -> None:
    assert [job.name for job in JOBS if bool(job.codes) == job.name.startswith("healthy_")] == []


@pytest.mark.parametrize("script", sorted({job.script for job in JOBS}))
def test_a_script_has_its_jobs_and_no_other(script: str) -> None:
    tree = ast.parse((HERE / script).read_text(encoding="utf-8"))
    beginnings = ("healthy_", *(code.replace("-", "_") for code in CODES))
    functions = [each for each in tree.body if isinstance(each, ast.FunctionDef) and not each.args.args]
    written = {each.name for each in functions if each.name.startswith(beginnings)}
    assert written == {job.name for job in JOBS if job.script == script}


def report(*codes_and_severities: tuple[str, str]) -> dict[str, Any]:
    findings = [{"code": code, "severity": severity} for code, severity in codes_and_severities]
    return {"verdict": findings[0] if findings else {"code": "healthy", "severity": "none"}, "findings": findings}


def test_the_first_finding_about_a_sick_job_must_be_what_was_planted() -> None:
    assert SICK.right(report(("input-bound", "critical"), ("small-batch", "hint")))
    assert not SICK.right(report(("small-batch", "critical"), ("input-bound", "critical")))
    assert not SICK.right(report())


def test_a_state_is_a_verdict_with_its_cause_as_a_finding() -> None:
    assert Job("ranks.py", "hung", ("hung",)).right({"verdict": {"code": "hung"}, "findings": [{"code": "lost-rank"}]})


def test_hints_about_a_healthy_job_are_no_alarm() -> None:
    assert HEALTHY.right(report()) and HEALTHY.right(report(("small-batch", "hint")))
    assert not HEALTHY.right(report(("small-batch", "hint"), ("input-bound", "warning")))
    assert not HEALTHY.right({"verdict": {"code": "hung", "severity": "critical"}, "findings": []})


def test_what_is_true_of_the_whole_machine_can_be_left_out() -> None:
    busy = report(("host-contention", "critical"), ("input-bound", "critical"), ("small-batch", "hint"))
    assert not SICK.right(busy) and SICK.right(without(busy, {"host-contention"}))
    assert HEALTHY.right(without(report(("host-contention", "critical")), {"host-contention"}))
    assert not HEALTHY.right(without(busy, {"host-contention"}))


def test_a_job_is_not_run_and_not_right_where_what_it_needs_was_not_made(tmp_path: Path) -> None:
    job = next(job for job in JOBS if job.needs == "frameworks")
    command, made = [sys.executable, ZOO, "--only", job.name, "--rounds", "1"], {"FRAMEWORKS": str(tmp_path)}
    told = subprocess.run(command, env=os.environ | made, capture_output=True, text=True)
    line, sick, _ = told.stdout.splitlines()
    assert line.split(maxsplit=2) == ["-", job.name, "not run: needs make frameworks"]
    assert sick.startswith("sick: 0 of 1 right") and told.returncode == 1
