"""Two sides of runs: what differs, what does not, and what cannot be said."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest
from planted import Planted
from simulated_runs import Kind, run

from probe.diagnose.compare.compare import compare
from probe.diagnose.compare.report import Compared
from probe.diagnose.compare.run import Run, Seen
from probe.diagnose.rule import Finding, Rule
from probe.diagnose.watched import Watched
from probe.errors import SilentError
from probe.query.result import Result

USUAL = Kind(runs_differ=0.003)
SLOWER = replace(USUAL, slower=0.1)
shared = cache(run)  # for tests that change none of its rows


def told(before: Kind, after: Kind, seed: int = 0, runs: int = 1) -> Compared:
    sides = [
        [shared(kind, 100 * seed + at + number) for number in range(runs)] for at, kind in ((0, before), (50, after))
    ]
    return compare(sides[0], sides[1], rules=())


@pytest.fixture(scope="module")
def slower() -> Compared:
    return told(USUAL, SLOWER)


def test_what_became_slower_is_told_with_its_phase_and_module(slower: Compared) -> None:
    assert slower.step.differs and slower.step.ratio_low and slower.step.ratio_high
    assert slower.step.ratio_low <= 1.1 <= slower.step.ratio_high
    assert slower.samples is not None and slower.samples.differs and (slower.samples.ratio or 1) < 1
    assert {each.name for each in slower.differing} == {"step_time", "throughput", "forward", "head forward"}
    assert slower.sentence.startswith("B is slower: its step takes 40.")


def test_the_lines_tell_it_dearest_first(slower: Compared) -> None:
    parts = slower.parts()
    assert sorted(line.split(":")[0] for line in parts["Differs"]) == ["forward", "head forward"]
    costs = [each.difference or 0.0 for each in slower.details if each.differs]
    assert costs == sorted(costs, reverse=True) and len(costs) == 2
    shown = r"forward: [\d.]+ -> [\d.]+ ms \(\+\d\.\d+, \+\d\.\d+ to \+\d\.\d+\)"
    assert any(re.fullmatch(shown, line) for line in parts["Differs"]), parts["Differs"]
    assert "no difference beyond chance: " in parts["Same"][0] and "backward" in parts["Same"][0]
    assert parts["A"] == ["run 0: 1 run, 1 rank, 400 steps"]
    assert parts["Note"] == [
        "That runs of one job differ by 1.0 % is assumed: three runs a side would show it (--runs-differ says "
        "otherwise)."
    ]
    found = json.loads(json.dumps(slower.as_json()))
    assert found["verdict"] == slower.sentence and found["step"]["differs"] and found["assumed"] == 0.01


def test_what_became_faster_is_told_with_the_other_sign() -> None:
    assert told(SLOWER, USUAL).sentence.startswith("B is faster: its step takes 44.")


def test_where_there_is_no_difference_none_is_told() -> None:
    found = told(USUAL, USUAL)
    assert found.sentence.startswith("No difference in step time beyond chance: ") and "Differs" not in found.parts()


def test_what_is_certain_and_below_a_hundredth_of_the_step_is_not_told() -> None:
    calm = Kind(runs_differ=0.0, noise=0.001)
    found = compare([shared(calm, 1)], [shared(replace(calm, slower=0.005), 2)], runs_differ=0.0, rules=())
    assert found.step.ratio_low and found.step.ratio_low > 1.003 and not found.differing


@pytest.mark.slow
def test_nor_is_one_in_many_pairs() -> None:
    found = [told(USUAL, USUAL, seed) for seed in range(1, 9)]
    assert [each.name for one in found for each in one.differing] == []


@pytest.mark.slow
def test_runs_that_differ_by_more_than_chance_within_a_run_are_not_believed_singly() -> None:
    restless = Kind(runs_differ=0.03)
    pairs = [(run(restless, seed), run(restless, 99 - seed)) for seed in range(10)]
    as_one = [compare([one], [other], runs_differ=0.0, rules=()) for one, other in pairs]
    assert sum(bool(each.step.differs) for each in as_one) >= 5  # what happens if each step counts as a witness
    allowed = [compare([one], [other], runs_differ=0.03, rules=()) for one, other in pairs]
    assert sum(bool(each.step.differs) for each in allowed) <= 1


def test_three_runs_a_side_tell_how_much_runs_differ() -> None:
    calm, restless = (told(Kind(runs_differ=differ), Kind(runs_differ=differ), 3, runs=3) for differ in (0.001, 0.05))
    widths = [(each.step.ratio_high or 0) - (each.step.ratio_low or 0) for each in (calm, restless)]
    assert calm.assumed is None and widths[1] > 5 * widths[0]
    assert calm.before.steps == 1200 and "3 runs, 1 rank, 1,200 steps" in calm.parts()["A"][0]


def test_stretches_of_one_run_do_not_differ_as_runs_do() -> None:
    tables = run(Kind(800, runs_differ=0.0), 1).tables
    found = compare([Run(tables, (1, 400))], [Run(tables, (401, 800))], rules=())
    assert found.assumed is None and found.before.names == ["run 1@1..400"] and not found.differing
    apart = told(Kind(runs_differ=0.0), Kind(runs_differ=0.0))
    widths = [(each.step.ratio_high or 0) - (each.step.ratio_low or 0) for each in (found, apart)]
    assert widths[0] < 0.7 * widths[1]


def test_waiting_for_cores_widens_the_interval_and_is_told() -> None:
    busy = run(SLOWER, 50)
    rows = [{"step": step, "core_wait_pct": 40.0} for step in range(1, 400, 40)]
    assert isinstance(busy.tables, Planted)
    busy.tables.plant("host.process_trace", rows)
    found = compare([shared(USUAL, 0)], [busy], rules=())
    assert not found.step.differs and found.after.waits == pytest.approx(0.4)
    assert "waited for a core for 0.0 % of the time in A, 40 % in B" in found.notes[0]


def test_what_one_side_alone_has_is_listed_and_not_compared() -> None:
    other = run(USUAL, 1)
    assert isinstance(other.tables, Planted)
    other.tables.database.execute("UPDATE python.torch_trace SET module = 'lm_head' WHERE module = 'head'")
    found = compare([shared(USUAL, 0)], [other], rules=())
    assert (found.only_before, found.only_after) == (
        ["head backward", "head forward"], ["lm_head backward", "lm_head forward"]
    )  # fmt: skip
    assert not {"head forward", "lm_head forward"} & {each.name for each in found.modules}
    assert found.parts()["Only in A"] == ["head backward, head forward"]


def test_a_pass_without_a_known_module_has_a_name_too() -> None:
    other = run(USUAL, 51)
    other.tables.database.execute(
        "UPDATE python.torch_trace SET module = NULL, module_type = NULL WHERE module = 'head'"
    )
    found = compare([shared(USUAL, 0)], [other], rules=())
    assert all(name.startswith("(no module) ") for name in found.only_after) and found.only_after
    assert "(no module) forward" in found.parts()["Only in B"][0]


def test_steps_with_calls_that_were_not_timed_do_not_count() -> None:
    """In B the same as in A, but a device has not told some steps, and of others only the second of two calls."""
    a, b = run(replace(USUAL, steps=800), 0), run(replace(USUAL, steps=800), 0)
    assert isinstance(b.tables, Planted)
    for unknown in (
        "UPDATE python.torch_trace SET duration = NULL WHERE step % 10 = 1 AND module = 'head'",
        "INSERT INTO python.torch_trace BY NAME SELECT * REPLACE (NULL AS duration) FROM python.torch_trace WHERE "
        "step % 10 = 2 AND module = 'head'",
        "UPDATE python.nccl_trace SET duration_ms = NULL WHERE step % 3 = 0",
    ):
        b.tables.database.execute(unknown)
    seen = [Seen(each) for each in (a, b)]
    assert [len(each.series("modules", ["head forward"])["head forward"]) for each in seen] == [160, 128]
    for kind, name in (("modules", "head forward"), ("collectives", "all_reduce (ddp)")):
        before, after = (each.parts[kind][name] for each in seen)
        assert after == pytest.approx(before, rel=0.02) and seen[1].series(kind, [name])[name].min() > 0
        assert seen[1].series(kind, [name])[name].mean() == pytest.approx(after)


def test_steps_of_a_day_are_never_python_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Seen(shared(USUAL, 0))
    assert (parts := [*seen.parts["modules"]])
    for name in ("to_pylist", "__iter__"):
        monkeypatch.setattr(Result, name, lambda result: pytest.fail("rows were made objects"))
    assert len(seen.series("modules", parts)) == len(parts) and len(seen.memory()["rss_mb"])


def test_what_was_never_timed_is_no_part() -> None:
    other = run(USUAL, 0)
    assert isinstance(other.tables, Planted)
    other.tables.database.execute("UPDATE python.torch_trace SET duration = NULL WHERE module = 'head'")
    assert "head forward" not in Seen(other).parts["modules"]


def test_layers_of_a_model_are_one_figure(slower: Compared) -> None:
    names = {each.name for each in slower.modules}
    assert {"layers.*.attn (Module) forward", "layers.*.attn (Module) backward"} < names


def test_the_first_slow_steps_are_left_out_and_lengths_may_differ() -> None:
    other = run(Kind(500, runs_differ=0.0), 1)
    assert isinstance(other.tables, Planted)
    other.tables.database.execute("UPDATE python.step_trace SET duration = duration * 5 WHERE step <= 12")
    found = compare([run(Kind(200, runs_differ=0.0), 0)], [other], rules=())
    assert (found.before.steps, found.after.steps, found.after.left_out) == (200, 488, 12)
    assert not found.step.differs and "(12 left out to settle)" in found.parts()["B"][0]


def test_a_phase_that_too_few_steps_tell_has_no_interval() -> None:
    found = told(Kind(100), Kind(100))  # 20 of them sampled
    (forward,) = [each for each in found.phases if each.name == "forward"]
    assert forward.differs is None and forward.ratio_low is None and forward.before
    assert any("known of too few steps: " in line and "(20 of 40)" in line for line in found.parts()["Same"])


def test_a_run_without_enough_steps_is_an_error_that_says_how_many_there_are() -> None:
    with pytest.raises(SilentError, match=r"Of run 50@5..20 16 steps can be compared; 40 are needed") as raised:
        compare([shared(USUAL, 0)], [Run(shared(USUAL, 50).tables, (5, 20))], rules=())
    assert raised.value.code == "few-steps"


def test_jobs_without_modules_samples_or_collectives_are_compared_all_the_same() -> None:
    bare = [run(USUAL, seed) for seed in (0, 1)]
    for each in bare:
        assert isinstance(each.tables, Planted)
        for table in ("torch_trace", "nccl_trace"):
            each.tables.database.execute(f"DELETE FROM python.{table}")
        each.tables.database.execute("UPDATE python.step_trace SET samples = NULL, rss_mb = NULL, comm_duration = NULL")
    found = compare(bare[:1], bare[1:], rules=())
    assert (found.samples, found.modules, found.collectives) == (None, [], []) and found.step.ratio_low
    assert "Samples" not in found.parts()


def test_settings_that_differ_are_told_and_other_world_sizes_noted() -> None:
    kinds = [("python", "3.11", 1), ("python", "3.12", 2)]
    runs = []
    for seed, (_, python, ranks) in enumerate(kinds):
        planted = Planted(f"job {seed}").steps(80, ranks=range(ranks), forward=10, samples=16 * ranks)
        planted.plant("probe.agents", [{"state": "answers", "world_size": ranks, "python": python, "torch": "2.13"}])
        loader = {"step": 9, "loader": "train", "num_workers": seed, "prefetch_factor": 2 if seed else None}
        planted.plant("python.dataloader_trace", [loader])
        runs.append(Run(planted, settings={"command": "train.py"}))
    found = compare(runs[:1], runs[1:], rules=())
    settings = {each.name: (each.before, each.after) for each in found.settings}
    assert settings["python"] == ("3.11", "3.12") and settings["train.num_workers"] == ("0", "1")
    assert settings["train.prefetch_factor"] == ("None", "2") and "train.batch_size" not in settings
    assert settings["world_size"] == ("1", "2") and "torch" not in settings and "command" not in settings
    assert any("world sizes differ" in note for note in found.notes) and found.after.ranks == [2]


def test_findings_are_compared_by_code() -> None:
    def find(watched: Watched) -> Iterator[Finding]:
        share = 0.4 if watched.endpoint == "run 0" else 0.2
        yield Finding("Always.", share=share)

    def once(watched: Watched) -> Iterator[Finding]:
        if watched.endpoint == "run 50":
            yield Finding("New.", share=0.3)

    def unseen(watched: Watched) -> Iterator[Finding]:
        if watched.endpoint == "run 50":
            raise SilentError("Too few steps.", code="few-steps")
        yield Finding("Old.", share=0.5)

    rules = [Rule("always", "Finds.", find), Rule("once", "Finds.", once), Rule("unseen", "Finds.", unseen)]
    found = compare([shared(USUAL, 0)], [shared(USUAL, 50)], rules=rules)
    assert [(each.code, each.on, each.unknown, each.before, each.after) for each in found.findings] == [
        ("always", ("A", "B"), (), 0.4, 0.2), ("once", ("B",), (), None, 0.3), ("unseen", ("A",), ("B",), 0.5, None)
    ]  # fmt: skip
    assert found.parts()["Findings"] == [
        "both have always: 40 % -> 20 % of the step", "only B has once: New.", "A has unseen, B does not tell: Old."
    ]  # fmt: skip


def test_what_keeps_one_run_from_being_healthy_is_no_finding() -> None:
    runs = [Run(Planted(f"job {other}").steps(200, forward=50, other=other)) for other in (5, 60)]
    assert compare(runs[:1], runs[1:], rules=()).findings == []


def test_memory_is_compared_too() -> None:
    found = told(USUAL, replace(USUAL, rss_mb=1200.0))
    (memory,) = found.memory
    assert memory.differs and memory.difference == pytest.approx(200, rel=0.1) and not found.step.differs
    assert found.sentence.startswith("No difference in step time beyond chance, but not in all of its parts")
