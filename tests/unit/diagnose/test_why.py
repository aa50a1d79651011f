"""The verdict: findings ordered by cost, consequences under their cause, and what could not be looked at."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from planted import Planted

from probe.diagnose.hang.report import Report
from probe.diagnose.rule import Finding, Rule
from probe.diagnose.watched import Watched
from probe.diagnose.why import judge, of_state
from probe.errors import SilentError, UsageError
from probe.host.facts import Facts
from probe.query.result import Coverage


def rule(code: str, *findings: Finding, of: tuple[str, ...] = (), severity: Any = "warning") -> Rule[Watched]:
    return Rule(code, "Finds.", lambda watched: findings, severity, ("python.step_trace",), of, "SELECT {window}")


def costs(ms: float, **more: Any) -> Finding:
    return Finding(f"It costs {ms} ms.", seconds=ms / 1e3, share=ms / 100, **more)


@pytest.fixture(scope="module")
def watched() -> Watched:
    return Planted().steps(60, noise=0.0, forward=60, backward=40).watched()


def test_what_costs_most_is_the_verdict(watched: Watched) -> None:
    told = judge(watched, [rule("small", costs(12)), rule("large", costs(40)), rule("tiny", costs(3))])
    assert (told.code, told.severity) == ("large", "critical")
    assert [each.severity for each in told.findings] == ["critical", "warning", "hint"]


def test_a_job_in_which_nothing_dear_is_found_is_healthy(watched: Watched) -> None:
    told = judge(watched, [rule("tiny", costs(3)), rule("unsure", costs(40, confidence=0.5))])
    assert told.code == "healthy" and {each.severity for each in told.findings} == {"hint"}
    assert told.sentence.startswith("Healthy: in 60 steps of 100 ms, 2 rules found nothing")


def test_a_cause_that_explains_a_finding_takes_its_place(watched: Watched) -> None:
    told = judge(watched, [rule("general", costs(40)), rule("cause", costs(36), of=("general",))])
    assert [each.code for each in told.findings] == ["cause"]
    assert [each.code for each in told.findings[0].consequences] == ["general"]
    assert "so also: It costs 40 ms." in told.parts()["Evidence"]


def test_a_cause_that_explains_too_little_does_not(watched: Watched) -> None:
    told = judge(watched, [rule("general", costs(40)), rule("cause", costs(20), of=("general",))])
    assert [each.code for each in told.findings] == ["general", "cause"]


@pytest.mark.parametrize("doubted", [costs(36, confidence=0.5), costs(36, confidence=0.5, severity="critical")])
def test_a_cause_in_doubt_does_not_make_a_job_healthy(watched: Watched, doubted: Finding) -> None:
    told = judge(watched, [rule("general", costs(40)), rule("cause", doubted, of=("general",))])
    assert told.code == "general" and [each.code for each in told.findings] == ["general", "cause"]
    hints = judge(watched, [rule("general", costs(9)), rule("cause", costs(8), of=("general",))])
    assert [each.code for each in hints.findings] == ["cause"]


def test_a_cause_too_small_to_count_does_not_make_a_job_healthy(watched: Watched) -> None:
    told = judge(watched, [rule("general", costs(10)), rule("cause", costs(9), of=("general",))])
    assert told.code == "general" and not told.findings[0].consequences


def test_a_cause_that_is_a_hint_on_purpose_explains_what_it_costs(watched: Watched) -> None:
    told = judge(watched, [rule("general", costs(40)), rule("cause", costs(36, severity="hint"), of=("general",))])
    assert told.code == "healthy" and [each.code for each in told.findings[0].consequences] == ["general"]


def test_what_is_not_the_verdict_is_told_with_its_place(watched: Watched) -> None:
    there = costs(20, where="in read (train.py:9)", remedy="probe 4242 eval 'x'")
    told = judge(watched, [rule("general", costs(40)), rule("other", there), rule("far", costs(10, where="x" * 100))])
    assert told.parts()["Also"] == [
        "It costs 20 ms. Where: in read (train.py:9).  probe 4242 eval 'x'",
        "It costs 10 ms.",
    ]


def test_a_rule_that_cannot_look_is_named_with_its_reason(watched: Watched) -> None:
    def cannot(watched: Watched) -> Iterator[Finding]:
        raise UsageError("Only one rank.", code="one-rank")

    told = judge(watched, [Rule("ranks", "Finds.", cannot, needs=("python.step_trace",)), rule("quiet")])
    assert told.skipped == {"ranks": "Only one rank"} and told.checked == ("quiet",)
    assert told.parts()["Looked"][0].endswith("1 could not: only one rank.")
    many = judge(watched, [Rule(str(number), "Finds.", cannot, needs=("python.step_trace",)) for number in range(3)])
    assert many.parts()["Looked"][0].endswith("3 could not: only one rank (3).")


def test_ranks_that_do_not_answer_are_told_unless_their_memory_is_read() -> None:
    coverage = Coverage((0, 1), (2, 3, 5), (2,), 0.1)
    watched = Planted(coverage=coverage).steps(60, ranks=(0, 1, 2), noise=0.0, forward=60, backward=40).watched()
    told = judge(watched, [rule("tiny", costs(3)), rule("quiet")])
    assert told.sentence.startswith("Healthy: in 60 steps of 100 ms on 3 of 5 ranks, 2 rules found nothing")
    assert told.parts()["Looked"] == ["2 rules at 60 steps in 25 s; ranks 3, 5 did not answer."]
    assert told.missing == (3, 5) and told.as_json()["missing"] == [3, 5]
    slow = judge(watched, [rule("large", costs(40))])
    assert slow.parts()["Looked"][0].endswith("; ranks 3, 5 did not answer.")


def test_no_rank_is_missing_where_all_answer_or_none_was_looked_at(watched: Watched) -> None:
    told = judge(watched, [rule("tiny", costs(3))])
    assert told.missing == () and told.as_json()["missing"] == [] and "answer" not in told.parts()["Looked"][0]
    idle = of_state("4242", Report("idle", "It waits for requests.", False))
    assert "Looked" not in idle.parts() and idle.as_json()["missing"] == []


def test_the_gain_is_told_in_samples_a_second_and_its_sql_can_be_run(watched: Watched) -> None:
    finding = costs(60, saves=0.05, assumes="with 4 workers", remedy='probe 4242 eval "x = 4"')
    told = judge(watched, [rule("slow", finding)])
    assert told.parts()["Cost"] == ["60 ms of 100 ms a step; 320 samples/s now, about 640 with 4 workers."]
    assert told.parts()["Then"] == ["probe 4242 why --since-change"]
    (found,) = told.as_json()["findings"]
    assert found["sql"] == f"SELECT {watched.window}" and found["estimate"]["step_s"] == pytest.approx(0.05, rel=0.02)


def test_shares_have_an_interval_that_holds_the_truth() -> None:
    planted, windows = Planted().steps(4800, noise=0.3, data=30, forward=70), range(1, 4800, 120)
    phases = [planted.watched(first, first + 119).phase("data") for first in windows]
    assert sum(phase.low <= 0.03 <= phase.high for phase in phases) >= 0.87 * len(windows)


def test_a_part_of_the_step_is_measured_over_all_sampled_steps() -> None:
    watched = Planted().steps(200, noise=0.0, forward=60, backward=40).watched()
    half = [{"rank": 0, "step": step, "seconds": 0.05} for step in range(1, 201, 2)]
    part = watched.part("half", half)
    assert part.seconds == pytest.approx(0.025) and part.share == pytest.approx(0.25) and part.sure(0.2) > 0.99
    with pytest.raises(SilentError, match="Fewer than 40 sampled steps tell how long half takes"):
        Planted().steps(20, forward=60).watched().part("half", half)


def test_few_steps_without_a_finding_are_not_called_healthy() -> None:
    def needs_forward(watched: Watched) -> Iterator[Finding]:
        watched.phase("forward")
        yield from ()

    few = Planted().steps(15, noise=0.0, forward=60, backward=40).watched()
    told = judge(few, [rule("tiny", costs(3)), Rule("forward", "Finds.", needs_forward, needs=("python.step_trace",))])
    assert (told.code, told.severity) == ("unknown", "none")
    assert told.sentence == "Unknown: 1 of 2 rules could not look at 15 steps of 100 ms, 40 are needed."
    assert told.parts()["Looked"] == ["1 rule at 15 steps in 25 s, 1 could not: fewer than 40 sampled steps."]
    assert told.parts()["Try"] == ["probe 4242 why --seconds 10"]
    assert judge(few, [rule("large", costs(40))]).code == "large"


LOOP = {"noise": 0.0, "forward": 20.0, "backward": 20.0, "other": 60.0}
REFUSED = {"why_not_profiled": "it was refused"}


def test_a_job_that_spends_much_outside_the_phases_is_not_healthy_without_a_profile() -> None:
    told = judge(Planted().steps(100, **LOOP).watched(**REFUSED), [rule("tiny", costs(3))])
    assert (told.code, told.severity) == ("unknown", "none")
    assert told.sentence == (
        "Unknown: 60 ms of 100 ms a step are in no phase, and without a profile nothing tells what they are: "
        "it was refused."
    )
    assert told.parts()["Try"] == ["probe 4242 profile"] and told.parts()["Looked"]
    assert judge(Planted().steps(100, **LOOP).watched(**REFUSED), [rule("large", costs(40))]).code == "large"
    assert judge(Planted().steps(100, **LOOP).watched(), [rule("tiny", costs(3))]).code == "healthy"


def test_what_a_healthy_loop_does_itself_needs_no_profile() -> None:
    small = Planted().steps(100, noise=0.0, forward=40, backward=40, other=20).watched(**REFUSED)
    assert judge(small, [rule("tiny", costs(3))]).code == "healthy"


def test_a_server_waits_and_so_does_a_loop_for_a_device_that_is_busy() -> None:
    serves = Planted(agents=[Facts(rank=0, step_ends="call")]).steps(100, noise=0.0, validation=20, other=80)
    assert judge(serves.watched(**REFUSED), [rule("tiny", costs(3))]).code == "healthy"
    waits = Planted().steps(100, **LOOP).watched(**REFUSED)
    assert judge(waits, [rule("gpu-idle")]).code == "healthy"
    assert judge(waits, [rule("gpu-idle", costs(20, confidence=0.5))]).code == "unknown"


MODEL = ("forward", 0.04, ("train (train.py:5)", "Module._call_impl (torch/nn/modules/module.py:9)"))
READS = ("other", 0.06, ("train (train.py:3)", "batches (train.py:7)"))
LOOPS = ("other", 0.06, ("train (train.py:3)", "mse_loss (torch/nn/functional.py:7)"))
TINY = rule("tiny", costs(3))


def calling(*stacks: tuple[str, float, tuple[str, ...]], holds_gil: bool = False, **of: Any) -> Planted:
    return Planted().steps(100, **LOOP | of).profile(MODEL, *stacks, steps=range(1, 101), holds_gil=holds_gil)


def test_a_job_whose_own_code_mostly_calls_what_is_no_python_is_not_healthy() -> None:
    told = judge(calling(READS).watched(), [TINY])
    assert (told.code, told.severity) == ("unknown", "none")
    assert told.sentence == (
        "Unknown: 60 ms of 100 ms a step are in batches (train.py:7), outside of model, loader and optimizer; what is "
        "called there lets go of the GIL, and is not known."
    )
    assert judge(calling(READS).watched(), [rule("large", costs(40))]).code == "large"


def test_what_else_is_outside_the_phases_is_known_or_too_little() -> None:
    few = calling(("other", 0.015, READS[2]), forward=60.0, other=15.0)
    of_torch, of_rules, model = calling(LOOPS), calling(READS, holds_gil=True), calling(READS, forward=0.0)
    for planted in (few, of_torch, of_rules, model):
        assert judge(planted.watched(), [TINY]).code == "healthy"


def test_own_code_waits_for_requests_and_for_a_device_that_may_be_busy() -> None:
    serves = calling(READS)
    serves.agents = [Facts(rank=0, step_ends="call")]
    assert judge(serves.watched(), [TINY]).code == "healthy"
    assert judge(calling(READS).watched(), [rule("gpu-idle")]).code == "healthy"
    rows = [{"step": step, "stage": "forward", "device": "cuda:0"} for step in range(1, 101)]
    planted = calling(READS).plant("python.torch_trace", rows)
    assert judge(planted.watched(), [TINY]).code == "healthy"
    assert judge(planted.watched(), [rule("gpu-idle", costs(20, confidence=0.5))]).code == "unknown"


def without_phases(planted: Planted, where: str) -> Planted:
    names = ("data", "forward", "backward", "validation", "optimizer", "comm", "other")
    set_null = ", ".join(f"{name}_duration = NULL" for name in names)
    planted.database.execute(f"UPDATE python.step_trace SET {set_null} WHERE {where}")
    return planted


def test_steps_whose_rows_were_overwritten_are_not_called_healthy() -> None:
    planted = without_phases(Planted().steps(200, noise=0.0, forward=60, backward=40), "step < 185")
    told = judge(planted.watched(), [rule("tiny", costs(3))])
    assert (told.code, told.severity) == ("unknown", "none")
    assert told.sentence == (
        "Unknown: the phases are known of 6 of 100 sampled steps of 100 ms, 40 are needed: rows of the others have "
        "been overwritten."
    )
    assert "Try" not in told.parts()
    assert judge(planted.watched(), [rule("large", costs(40))]).code == "large"


def test_a_job_of_which_few_steps_were_sampled_is_to_be_watched_for_longer() -> None:
    planted = Planted().steps(200, noise=0.0, forward=60, backward=40)
    planted.database.execute("UPDATE python.step_trace SET sampled = false WHERE step >= 50")
    told = judge(planted.watched(), [rule("tiny", costs(3))])
    assert told.code == "unknown"
    assert told.sentence == ("Unknown: the phases are known of 29 of 200 steps of 100 ms, 40 sampled ones are needed.")
    assert told.parts()["Try"] == ["probe 4242 why --seconds 120"]


def test_where_a_tap_is_off_that_is_the_reason() -> None:
    planted = Planted(agents=[Facts(rank=0, taps={"loader": "off: broken", "forward": "on"})])
    planted = without_phases(planted.steps(200, noise=0.0, forward=60, backward=40), "true")
    told = judge(planted.watched(), [rule("tiny", costs(3))])
    assert told.sentence == "Unknown: the phases of the steps are not known: loader is off: broken."


def test_a_server_whose_calls_are_its_steps_has_phases() -> None:
    serves = Planted(agents=[Facts(rank=0, step_ends="call")]).steps(100, noise=0.0, validation=90, other=10)
    assert judge(serves.watched(), [rule("tiny", costs(3))]).code == "healthy"


def test_without_a_whole_step_nothing_is_known() -> None:
    told = judge(Planted().watched(), [rule("large", costs(40))])
    assert (told.code, told.severity, told.steps, told.step_s) == ("unknown", "none", 0, None)
    assert told.parts()["Try"] == ["probe 4242 hang"] and told.as_json()["findings"][0]["code"] == "unknown"
