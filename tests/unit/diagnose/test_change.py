"""What a change brought: which eval it was, from when on it was in effect, and the steps on either side."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import numpy as np
import pytest
from fake_agent import MODEL, FakeAgent

from probe.connection import Connection
from probe.diagnose.change.change import change
from probe.diagnose.change.effects import effects, loaders_of
from probe.errors import SilentError
from probe.streams import ENGINE, EVAL, ITERATOR, LOG_EVAL, LOG_EVAL_DONE, OPTIMIZER, SAMPLED

Make = Callable[..., FakeAgent]
Connect = Callable[..., Connection]
MS = 1_000_000
ADAM = 1003


class Job:
    """A rank that trains, with 1 ms each for forward, backward and optimizer and some for data."""

    def __init__(self, one: FakeAgent) -> None:
        self.one, self.at, self.evals = one, MS, 0
        self.chance = np.random.default_rng(0)
        one.name_modules()

    def train(self, steps: int, data_ms: float, flags: int = SAMPLED) -> Job:
        for _ in range(steps):
            one, at = self.one, self.at
            data = at + int(MS * data_ms * self.chance.uniform(0.9, 1.1))
            one.load(at, data, 0, 2)
            one.span(data, data + MS, MODEL)
            one.span(data + MS, data + 2 * MS, 0, ENGINE)
            one.span(data + 2 * MS, data + 3 * MS, ADAM, OPTIMIZER)
            one.boundary(data + 3 * MS - 1000, flags=flags, samples=8 if flags & SAMPLED else 0)
            self.at = data + 3 * MS
        return self

    def eval(self, code: str, *changed: str) -> Job:
        self.evals += 1
        start, end = self.at + 1000, self.at + 5 * MS
        self.one.put(LOG_EVAL, self.evals, by="me", code=code, where="boundary", ranks=None)
        self.one.span(start, end, self.evals, EVAL)
        done = {"ok": True, "error": None, "changed": list(changed)}
        self.one.put(LOG_EVAL_DONE, self.evals, start_ns=start, end_ns=end, **done)
        self.at = end + 1000
        return self

    def epoch(self) -> Job:
        self.one.load(self.at, self.at + MS, flags=ITERATOR)
        self.at += 2 * MS
        return self


@pytest.fixture
def job(agent: Make) -> Job:
    return Job(agent())


def test_the_last_eval_that_changed_something_divides_the_steps(job: Job, connected: Connect) -> None:
    job.train(61, 17).eval("optimizer.fused = True", "optimizer.fused").train(30, 7).eval("loss.item()").train(20, 7)
    found = change(connected(job.one), None)
    assert (found.at_step, found.code, found.changed) == (61, "optimizer.fused = True", ["optimizer.fused"])
    # neither the step of the attach, nor those of the evals
    assert (found.steps_before, found.steps_after) == (60, 48)
    assert found.step.before == pytest.approx(0.020, rel=0.02) and found.step.after == pytest.approx(0.010, rel=0.02)
    assert found.samples and found.samples.after == pytest.approx(800, rel=0.02)
    phases = {each.name: each for each in found.phases}
    assert phases["data"].difference == pytest.approx(-0.010, rel=0.05) and phases["data"].differs
    assert not phases["forward"].differs and phases["forward"].after == pytest.approx(0.001)


def test_the_lines_tell_it(job: Job, connected: Connect) -> None:
    job.train(61, 17).eval("optimizer.fused = True", "optimizer.fused").train(50, 7)
    told = change(connected(job.one), None).lines()
    number, interval = r"[\d.]+", r"\([\d.]+ to [\d.]+\)"
    assert [line.split()[0] for line in told] == ["Change", "Step", "Median", "Samples", "Phases", "From"]
    assert told[0] == "Change    step 61: optimizer.fused = True"
    assert re.fullmatch(rf"Step      {number} -> {number} ms, (1.9|2.0)\d times as fast {interval}", told[1])
    assert re.fullmatch(rf"Samples   {number} -> {number} per second", told[3])
    data = rf"data 1{number} -> {number} ms \(-[\d.]+, -[\d.]+ to -[\d.]+\)"
    assert re.fullmatch(rf"Phases    {data}; no difference: forward, backward, optimizer(, other)?", told[4])
    assert told[5] == "From      60 steps before, 49 after"


def test_where_there_is_no_difference_none_is_told(job: Job, connected: Connect) -> None:
    job.train(61, 17).eval("model.x = 1", "model.x").train(50, 17)
    found = change(connected(job.one), None)
    assert found.step.differs is False and "no difference beyond chance (0.9" in found.lines()[1]
    assert json.loads(json.dumps(found.as_json()))["step"]["differs"] is False


def test_a_change_of_a_loader_counts_from_the_next_epoch_on(job: Job, connected: Connect) -> None:
    job.train(5, 17).epoch().train(56, 17).eval("loader.num_workers = 4", "loader.num_workers").train(30, 17)
    connection = connected(job.one)
    with pytest.raises(SilentError, match="takes effect with the next epoch of loader, which has not begun") as raised:
        change(connection, None)
    assert raised.value.code == "not-in-effect"
    job.epoch().train(60, 7).epoch().train(6, 7)
    found = change(connection, None)
    # step 91 began the epoch; then the workers' queue: 2 workers with 2 batches each
    assert (found.at_step, found.effect_step, found.from_step, found.steps_before) == (61, 91, 96, 60)
    assert found.step.after == pytest.approx(0.010, rel=0.03)
    assert found.lines()[0].endswith("loader.num_workers = 4   (in effect from step 91, the next epoch)")


def test_whole_epochs_are_compared_for_their_starts_take_long(job: Job, connected: Connect) -> None:
    for _ in range(5):
        job.epoch().train(1, 57).train(19, 17)
    job.eval("loader.num_workers = 4", "loader.num_workers")
    job.epoch().train(1, 57).train(15, 7)
    connection = connected(job.one)
    with pytest.raises(
        SilentError, match=r"No epoch has ended since .* at step 100; the one before had 20 steps"
    ) as raised:
        change(connection, None)
    assert raised.value.code == "few-steps"
    job.train(4, 7).epoch().train(1, 57).train(19, 7).epoch().train(1, 57).train(17, 7)
    found = change(connection, None)
    # of 54 steps, and not of those of the third epoch that came after as many as new workers make in advance
    assert (found.from_step, found.steps_after) == (105, 40)
    assert found.step.after == pytest.approx(0.0125, rel=0.01)


def test_where_no_long_epoch_has_ended_it_is_said(job: Job, connected: Connect) -> None:
    job.epoch().train(300, 17).eval("loader.num_workers = 4", "loader.num_workers").epoch().train(60, 7)
    found = change(connected(job.one), None)
    assert found.steps_after == 55
    assert found.notes == ["No epoch has ended since the change: what the start of one takes is not in it."]


def test_changes_that_take_effect_together_are_one(job: Job, connected: Connect) -> None:
    job.train(5, 17).epoch().train(56, 17).eval("loader.num_workers = 4", "loader.num_workers").train(20, 17)
    job.eval("loader.prefetch_factor = 2", "loader.prefetch_factor").train(5, 17).epoch().train(60, 7).epoch()
    job.train(5, 7)
    found = change(connected(job.one), None)
    assert found.code == "loader.num_workers = 4; loader.prefetch_factor = 2"
    assert (found.at_step, found.effect_step, found.steps_before) == (81, 86, 60)


def test_no_step_counts_before_the_previous_change_or_after_the_next(job: Job, connected: Connect) -> None:
    job.train(60, 30).eval("model.x = 1", "model.x").train(50, 17).eval("model.x = 2", "model.x").train(50, 7)
    connection = connected(job.one)
    assert change(connection, None).steps_before == 49
    assert (found := change(connection, 60)).code == "model.x = 1"
    assert (found.steps_before, found.steps_after) == (59, 49)


def test_a_step_can_be_named_at_which_no_eval_ran(job: Job, connected: Connect) -> None:
    job.train(60, 17).train(60, 7)
    found = change(connected(job.one), 60)
    assert (found.code, found.steps_before, found.steps_after) == ("", 59, 59)
    assert found.lines()[0] == "Change    step 60" and found.step.differs


def test_too_few_steps_are_an_error_that_says_how_many_more(job: Job, connected: Connect) -> None:
    job.train(61, 17).eval("model.x = 1", "model.x").train(26, 7)
    with pytest.raises(
        SilentError, match=r"from 62 on, .* 25 can .* 40 are needed: 15 more, in about 0\.1\d+ s"
    ) as raised:
        change(connected(job.one), None)
    assert raised.value.code == "few-steps" and raised.value.hint.endswith("why --since-change")


def test_too_few_steps_before_the_change_are_an_error(job: Job, connected: Connect) -> None:
    job.train(11, 17).eval("model.x = 1", "model.x").train(50, 7)
    with pytest.raises(SilentError, match="Of steps 0 to 10, before the change, 10 can be compared; 40 are needed"):
        change(connected(job.one), None)


def test_without_a_change_there_is_nothing_to_compare(job: Job, connected: Connect) -> None:
    job.train(61, 17).eval("print(loss.item())").train(50, 7)
    with pytest.raises(SilentError) as raised:
        change(connected(job.one), None)
    assert raised.value.code == "no-change" and "--at STEP" in raised.value.hint


def test_a_steps_time_is_the_mean_over_its_ranks(agent: Make, connected: Connect) -> None:
    ranks = [Job(agent(rank=rank, world_size=2)) for rank in range(2)]
    for rank, data_ms in zip(ranks, (7, 27), strict=True):
        rank.train(50, data_ms).eval("model.x = 1", "model.x").train(50, data_ms)
    found = change(connected(*(rank.one for rank in ranks)), None)
    assert found.step.before == pytest.approx(0.020, rel=0.02) and found.steps_before == 49
    assert found.samples and found.samples.before == pytest.approx(2 * 8 / 0.020, rel=0.02)


def test_the_first_steps_are_left_out_while_they_take_over_twice_the_median(job: Job, connected: Connect) -> None:
    job.train(61, 17).eval("model.x = 1", "model.x").train(1, 7).train(3, 60).train(50, 7).train(1, 60).train(9, 7)
    found = change(connected(job.one), None)
    assert found.settling == (0, 3) and found.steps_after == 60
    assert found.lines()[-1].endswith("60 after (left out to settle: 3 after)")


def test_steps_that_cost_more_to_record_are_not_compared_with_others(job: Job, connected: Connect) -> None:
    job.train(50, 17).train(50, 17, flags=0).eval("model.x = 1", "model.x").train(50, 17, flags=0)
    found = change(connected(job.one), None)
    assert (found.steps_before, found.steps_after) == (50, 49)
    assert found.notes == ["49 % of the steps before were sampled, 0.0 % after: only unsampled steps are compared."]
    assert {each.name for each in found.phases if each.differs is None} == {"forward", "validation", "other"}
    assert "; known of too few steps: forward (0 of 40)" in found.lines()[3]


@pytest.mark.parametrize(
    ("code", "changed", "found"),
    [
        ("x = 1", ["main().x; y still holds the old object"], ["main().x"]),
        ("for g in optimizer.param_groups: g['lr'] = 0.1", [], ["g['lr']"]),
        ("torch.set_num_threads(4)", [], ["torch.set_num_threads(4)"]),
        ("model.requires_grad_(False)", [], ["model.requires_grad_(False)"]),
        ("model.gradient_checkpointing_disable()", [], ["model.gradient_checkpointing_disable()"]),
        ("setattr(args, 'x', 1)", [], ["setattr(args, 'x', 1)"]),
        ("gc.freeze()", [], ["gc.freeze()"]),
        ("loss.item()", [], []),
        ("print(optimizer.param_groups[0]['lr'], set(range(3)), model.__len__())", [], []),
        ("# names opt", [], []),
    ],
)
def test_what_a_snippet_changed_is_told_from_what_it_read(code: str, changed: list[str], found: list[str]) -> None:
    assert effects(code, changed, True) == found
    assert effects(code, changed, False) == [each for each in found if changed]


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ("train_loader.num_workers", ["train_loader"]),
        ("self.train_loader.pin_memory", ["train_loader"]),
        ("main().train_loader", ["train_loader"]),
        ("data['loader'].num_workers", ["train_loader", "val_loader"]),  # it may be either
        ("val_loader.dataset.fast", []),  # has no workers, so it is changed at once
        ("train_loader.dataset.fast", ["train_loader"]),
        ("dataset.fast", ["train_loader"]),
        ("vars(train_loader)['persistent_workers']", ["train_loader"]),
        ("setattr(train_loader, 'num_workers', 4)", ["train_loader"]),
        ("vars(config)['persistent_workers']", ["train_loader", "val_loader"]),
        ("show(train_loader)", []),
        ("optimizer.lr", []),
        ("other_train_loader.x", []),
    ],
)
def test_a_change_of_a_loader_is_known_by_its_name(change: str, found: list[str]) -> None:
    assert loaders_of([change], {"train_loader": 2, "val_loader": 0}) == found
