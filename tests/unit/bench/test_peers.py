"""What is made of the peers' answers, and that the copies that they want can be made."""

from __future__ import annotations

from pathlib import Path

import pytest
from flames import flame
from peer_tools import card, edited
from targets.sick.registry import JOBS
from ten_jobs import TEN, Heard, Planted, heard, quoted

JOB = Planted("input_bound", "slow data", r"input.bound", r"dataloader", ("build_graph", "rank 1|R1"), r"workers")


def test_ten_jobs_of_the_zoo_have_ten_codes() -> None:
    codes = {job.name: job.codes for job in JOBS}
    assert len({codes[each.name] for each in TEN}) == len(TEN) == 10


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("Verdict: INPUT-BOUND\nNext: more workers", Heard("named", (), True)),
        ("70% fetch (dataloader.py:3)\n70% build_graph (train.py:9)", Heard("shown", ("build_graph",), False)),
        ("R1/N0 waited", Heard("no", ("rank 1",), False)),
        ("Verdict   Host contention\nAlso      Input-bound: 9 %", Heard("also", (), False)),
        ("100% input_bound (train.py:1)", Heard("no", (), False)),
    ],
)
def test_what_is_heard_is_what_was_said_but_not_the_jobs_name(said: str, expected: Heard) -> None:
    assert heard(JOB, said) == expected


def test_the_verdict_is_quoted_and_beside_it_what_names_the_cause_if_it_does_not() -> None:
    assert quoted(JOB, "Verdict: INPUT-BOUND\nWhy: 64%\nmore: input-bound") == "Verdict: INPUT-BOUND Why: 64%"
    assert quoted(JOB, "Verdict: BALANCED\nAlso input-bound") == "Verdict: BALANCED … Also input-bound"
    assert quoted(JOB, "main\n  9% build_graph (train.py)\ndataloader") == "9% build_graph (train.py)"


def test_a_flame_is_read_process_by_process_and_without_what_is_narrow() -> None:
    raw = 'process 1:"a";main;work 90\nprocess 1:"a";main;rest 9\nprocess 1:"a";process 2:"b";main;load 30\n'
    assert flame(raw).splitlines() == [
        'process 1:"a"', "  100%  main", "   91%  work", 'process 2:"b"', "  100%  main", "  100%  load",
    ]  # fmt: skip


def test_a_card_is_read_without_its_frame_and_without_what_stands_before_it() -> None:
    assert card("ready 1\n+---+\n|  Verdict: BALANCED  |\n|      |\n+---+\nbye") == "Verdict: BALANCED"
    assert card("Traceback: no card") == "Traceback: no card"


def test_the_copies_for_traceml_can_be_made_of_the_jobs_as_they_are(tmp_path: Path) -> None:
    copies = edited(tmp_path / "edited")
    scripts = {job.script for job in JOBS for each in TEN if each.name == job.name}
    for script in scripts:
        source = (copies / script).read_text(encoding="utf-8")
        compile(source, script, "exec")
    assert "traceml.init" in (copies / "job.py").read_text(encoding="utf-8")
