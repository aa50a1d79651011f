"""Rules on the training loop, on planted rows."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from planted import MS, Planted

from probe.diagnose import figures
from probe.diagnose.figures import us
from probe.diagnose.rule import Finding, Rule
from probe.diagnose.rules.loop.checkpoint_stall import CHECKPOINT_STALL
from probe.diagnose.rules.loop.periodic_stall import PERIODIC_STALL
from probe.diagnose.rules.loop.python_outside_model import PYTHON_OUTSIDE_MODEL
from probe.diagnose.rules.loop.step_growing import STEP_GROWING
from probe.diagnose.rules.loop.unrepresentative_sampling import UNREPRESENTATIVE_SAMPLING
from probe.diagnose.rules.loop.validation_heavy import VALIDATION_HEAVY
from probe.diagnose.watched import Watched
from probe.diagnose.why import judge
from probe.errors import SilentError

STEPS, UNDECIDED = range(1, 201), "not certain yet"
CALL = "Module._call_impl (torch/nn/modules/module.py:9)"
LOOP = "train (train.py:5)"
FORWARD = ("forward", 0.04, (LOOP, CALL, "CNN.forward (model.py:3)"))
BACKWARD = ("backward", 0.05, (LOOP, "_engine_run_backward (torch/autograd/graph.py:9)"))
OPTIMIZER = ("optimizer", 0.01, (LOOP, "SGD.step (torch/optim/sgd.py:9)"))
SAVE = ("other", 0.4, ("train (train.py:8)", "save_checkpoint (train.py:30)", "save (torch/serialization.py:9)"))
LOG = ("other", 0.5, ("train (train.py:9)", "log_histograms (train.py:20)"))


def training(extra: Iterable[int] = (), ms: float = 0.0, **of: Any) -> Planted:
    """200 steps of 100 ms, some of which take longer."""
    phases = {"forward": 40.0, "backward": 50.0, "optimizer": 10.0, **of}
    planted = Planted().steps(len(STEPS), noise=0.02, extra=dict.fromkeys(extra, ms), **phases)
    return planted.profile(FORWARD, BACKWARD, OPTIMIZER, steps=STEPS)


def one(findings: Iterable[Finding]) -> Finding:
    (found,) = findings
    return found


class TestCheckpoints:
    def test_they_are_found_with_their_distance_and_function(self) -> None:
        every = range(5, 201, 5)
        planted = training(every, 400).profile(SAVE, steps=every)
        planted.plant("host.process_trace", [{"step": 50, "write_mb_s": 210.0}])
        found = one(CHECKPOINT_STALL.find(planted.watched()))
        assert found.sentence == "Checkpoint stall: 44 % of the time goes into saving, 400 ms every 5 steps."
        assert found.where == "save_checkpoint (train.py:30)" and "up to 210 MB/s were written" in found.why
        assert (
            found.seconds == pytest.approx(0.08, rel=0.03) and found.confidence is not None and found.confidence > 0.9
        )

    def test_they_are_no_periodic_stall(self) -> None:
        every = range(5, 201, 5)
        assert not list(PERIODIC_STALL.find(training(every, 400).profile(SAVE, steps=every).watched()))

    def test_rare_ones_are_left_alone(self) -> None:
        assert not list(CHECKPOINT_STALL.find(training([50, 150], 200).profile(SAVE, steps=[50]).watched()))

    def test_of_a_single_long_one_is_only_told_that_it_was_there(self) -> None:
        planted = training([50], 4000).profile(("other", 4.0, SAVE[2]), steps=[50])
        found = one(CHECKPOINT_STALL.find(planted.watched()))
        assert (found.severity, found.seconds) == ("hint", None)
        assert found.sentence == "A checkpoint took 4.0 s; no second one was seen in 25 s."

    def test_what_is_loaded_or_drawn_is_no_checkpoint(self) -> None:
        load = ("other", 0.4, ("train (train.py:8)", "load (torch/serialization.py:9)"))
        draw = ("other", 0.4, ("train (train.py:8)", "savefig (plots.py:3)"))
        assert not list(CHECKPOINT_STALL.find(training().profile(load, draw, steps=STEPS[::5]).watched()))


class TestPeriodicStalls:
    def test_a_function_is_found_with_its_distance(self) -> None:
        planted = training(STEPS[9::10], 500).profile(LOG, steps=STEPS[9::10])
        found = one(PERIODIC_STALL.find(planted.watched()))
        assert found.sentence == "Periodic stall: log_histograms takes 500 ms every 10 steps: 33 % of the time."
        assert found.where == "log_histograms (train.py:20)"
        assert (
            found.seconds == pytest.approx(0.05, rel=0.03) and found.confidence is not None and found.confidence > 0.9
        )

    def test_it_takes_the_place_of_python_outside_the_model(self) -> None:
        planted = training(STEPS[9::10], 500).profile(LOG, steps=STEPS[9::10])
        told = judge(planted.watched(), [PYTHON_OUTSIDE_MODEL, PERIODIC_STALL])
        assert [each.code for each in told.findings] == ["periodic-stall"]
        assert [each.code for each in told.findings[0].consequences] == ["python-outside-model"]

    def test_two_functions_are_two_findings(self) -> None:
        sweep = ("other", 0.3, ("train (train.py:9)", "sweep (train.py:25)"))
        planted = training([*STEPS[9::10], *STEPS[14::20]], 300).profile(LOG, steps=STEPS[9::10])
        planted.profile(sweep, steps=STEPS[14::20])
        names = [found.sentence.split()[2] for found in PERIODIC_STALL.find(planted.watched())]
        assert names == ["log_histograms", "sweep"]

    def test_a_line_of_the_loop_is_found_where_no_function_is(self) -> None:
        line = ("other", 0.5, ("train (train.py:9)", "train.<locals>.<genexpr> (train.py:9)"))
        loss = ("other", 0.001, ("train (train.py:6)",))
        planted = training(STEPS[9::10], 500).profile(line, steps=STEPS[9::10]).profile(loss, steps=STEPS)
        assert one(PERIODIC_STALL.find(planted.watched())).sentence.startswith(
            "Periodic stall: train (train.py:9) takes"
        )

    def test_steps_that_the_machine_slows_down_are_left_alone(self) -> None:
        slow = [7, 31, 32, 80, 123, 167]
        planted = training(slow, 300).profile(("backward", 0.3, BACKWARD[2]), steps=slow)
        assert not list(PERIODIC_STALL.find(planted.watched()))

    def test_a_function_of_each_step_is_left_alone_even_if_the_profile_misses_it_in_most(self) -> None:
        random = np.random.default_rng(0)
        planted = Planted().steps(5000, forward=1, backward=1, other=1)
        seen = sorted(random.choice(5000, 1500, replace=False).tolist())
        planted.profile(("backward", 0.03, BACKWARD[2]), steps=seen[::2]).profile(
            ("other", 0.03, LOG[2]), steps=seen[1::2]
        )
        assert not list(PERIODIC_STALL.find(planted.watched()))

    def test_a_function_of_each_step_is_left_alone(self) -> None:
        assert not list(PERIODIC_STALL.find(training(other=500).profile(LOG, steps=STEPS).watched()))

    def test_a_log_that_costs_little_is_left_alone(self) -> None:
        assert not list(PERIODIC_STALL.find(training([100, 200], 200).profile(LOG, steps=[100]).watched()))


class TestPythonOutsideTheModel:
    COUNT = ("other", 0.04, ("train (train.py:9)", "train.<locals>.count_confusions (train.py:12)"))

    def test_its_function_is_found(self) -> None:
        planted = training(other=40).profile(self.COUNT, steps=STEPS, holds_gil=True)
        found = one(PYTHON_OUTSIDE_MODEL.find(planted.watched()))
        assert found.sentence == "Python outside the model: 29 % of each step, 100 % of that in count_confusions."
        assert found.seconds == pytest.approx(0.04, rel=0.03)

    def test_arithmetic_on_tensors_is_not_python(self) -> None:
        loss = ("other", 0.03, ("train (train.py:6)", "cross_entropy (torch/nn/functional.py:9)"))
        planted = training(other=60).profile(loss, steps=STEPS)
        planted.profile(("other", 0.03, ("train (train.py:7)",)), steps=STEPS, holds_gil=False)
        assert not list(PYTHON_OUTSIDE_MODEL.find(planted.watched()))

    def test_calls_in_steps_that_were_not_sampled_are_the_model_s(self) -> None:
        call = (None, 0.04, (LOOP, CALL, "CNN.forward (model.py:3)"))
        assert not list(PYTHON_OUTSIDE_MODEL.find(training().profile(call, steps=STEPS).watched()))

    def test_where_no_module_was_called_it_cannot_look(self) -> None:
        planted = training(forward=0, other=40).profile(self.COUNT, steps=STEPS)
        with pytest.raises(SilentError, match="No call of a module"):
            list(PYTHON_OUTSIDE_MODEL.find(planted.watched()))

    def test_without_a_profile_it_cannot_look(self) -> None:
        with pytest.raises(SilentError, match="No profile: it was refused"):
            list(PYTHON_OUTSIDE_MODEL.find(training().watched(why_not_profiled="it was refused")))


class TestValidation:
    CALLS = ("validation", 0.3, ("train (train.py:8)", "evaluate (train.py:40)", CALL, "CNN.forward (model.py:3)"))

    def calls(self, planted: Planted, *, root: str = "model", training: bool = False, trained: bool = True) -> Planted:
        usual = {"stage": "forward", "depth": 0, "recompute": False, "step": 20, "root": root}
        rows = [{**usual, "training": training, "grad": False, "total_host_duration": 0.3}]
        rows += [{**usual, "training": True, "grad": True, "total_host_duration": 0.04}] * trained
        return planted.plant("python.torch_trace", rows)

    def test_its_function_is_found_with_all_that_it_does_in_steps_sampled_or_not(self) -> None:
        rest = (None, 0.1, ("train (train.py:8)", "evaluate (train.py:41)"))
        planted = training(STEPS[19::20], 400).profile(self.CALLS, rest, steps=STEPS[19::20])
        found = one(VALIDATION_HEAVY.find(self.calls(planted).watched()))
        assert found.sentence == "Validation-heavy: 17 % of the time goes into evaluate, 400 ms every 20 steps."
        assert found.where.startswith("evaluate") and found.seconds == pytest.approx(0.02, rel=0.03)

    def test_a_moderate_one_is_left_alone(self) -> None:
        planted = training(STEPS[99::100], 300).profile(self.CALLS, steps=STEPS[99::100])
        assert not list(VALIDATION_HEAVY.find(self.calls(planted).watched()))

    @pytest.mark.parametrize("of", [{"trained": False}, {"training": True}], ids=["frozen encoder", "rollouts"])
    def test_calls_that_are_part_of_a_step_are_left_alone(self, of: Any) -> None:
        planted = training(validation=300).profile(self.CALLS, steps=STEPS)
        assert not list(VALIDATION_HEAVY.find(self.calls(planted, **of).watched()))

    def test_without_a_profile_the_phase_tells(self) -> None:
        planted = self.calls(training(validation=50))
        found = one(VALIDATION_HEAVY.find(planted.watched(why_not_profiled="it was refused")))
        assert found.sentence == "Validation-heavy: 33 % of each step is forward passes in eval mode."

    def test_of_a_single_one_is_only_told_that_it_was_there(self) -> None:
        planted = training([50], 5000).profile(("validation", 5.0, self.CALLS[2]), steps=[50])
        found = one(VALIDATION_HEAVY.find(self.calls(planted).watched()))
        assert found.severity == "hint" and "it came once in 25 s" in found.sentence


class TestRollouts:
    """A policy in eval mode takes turns with an environment, every twenty steps, and is trained in between."""

    COLLECT = ("train (train.py:8)", "collect (train.py:40)")
    POLICY = ("validation", 0.4, (*COLLECT, CALL, "Policy.forward (model.py:3)"))
    EVERY = STEPS[19::20]

    def rolling(self, *frames: str, ms: float = 600, **of: Any) -> Planted:
        """frames: what the environment is doing for so long."""
        planted = TestValidation().calls(training(self.EVERY, 400 + ms)).profile(self.POLICY, steps=self.EVERY)
        return planted.profile(("other", ms * MS, (*self.COLLECT, *frames)), steps=self.EVERY, **of)

    @pytest.mark.parametrize(
        ("frame", "holds_gil"), [("Env.step (env.py:7)", True), ("Pole.step (gymnasium/envs/pole.py:7)", False)]
    )
    def test_they_are_a_hint_and_the_environment_is_the_cause(self, frame: str, holds_gil: bool) -> None:
        watched = self.rolling(frame, holds_gil=holds_gil).watched()
        told = judge(watched, [VALIDATION_HEAVY, PYTHON_OUTSIDE_MODEL])
        assert [each.code for each in told.causes] == ["python-outside-model"]
        (hint,) = (each.finding for each in told.findings if each.code == "validation-heavy")
        assert hint.sentence == (
            "collect takes 33 % of the time, 1.0 s every 20 steps; it may be more than a validation: 60 % of that is "
            "Python outside of the model."
        )
        assert hint.severity == "hint" and hint.remedy == "Call collect less often, or make it cheaper."

    @pytest.mark.parametrize("ms", [50, 600])
    def test_a_validation_that_waits_for_a_device_or_counts_a_little_is_one(self, ms: float) -> None:
        planted = self.rolling(ms=ms, holds_gil=ms < 100)  # a tensor's item() lets go of the GIL
        assert one(VALIDATION_HEAVY.find(planted.watched())).sentence.startswith("Validation-heavy: ")


class TestValidationInStepsThatWereNotSampled:
    """A whole validation is within one step; of the blocks that steps fall into, every second one is sampled."""

    UNSAMPLED = tuple(step for step in STEPS if step // 10 % 2)
    EVERY = STEPS[18::20]
    CALLS = (None, 0.3, TestValidation.CALLS[2])
    BATCH = ("data", 0.1, ("train (train.py:8)", "evaluate (train.py:39)", "__next__ (torch/utils/data/dataloader.py)"))

    def training(self, every: Iterable[int], ms: float, known: int = 1) -> Planted:
        """known: of so many sampled steps one has samples in its forward pass."""
        planted = Planted().steps(200, noise=0.02, extra=dict.fromkeys(every, ms), forward=40, backward=50, optimizer=9)
        sampled = [step for step in STEPS if step not in self.UNSAMPLED]
        planted.profile(BACKWARD, OPTIMIZER, steps=STEPS).profile(FORWARD, steps=sampled[::known])
        return planted.profile((None, 0.04, FORWARD[2]), steps=self.UNSAMPLED)

    def test_its_function_is_found(self) -> None:
        planted = self.training(self.EVERY, 400).profile(self.CALLS, self.BATCH, steps=self.EVERY)
        found = one(VALIDATION_HEAVY.find(planted.watched()))
        told = "Calls of a model that train nothing: 17 % of the time goes into evaluate, 400 ms every 20 steps."
        assert found.sentence == told
        assert "not sampled" in found.why[-1] and judge(planted.watched(), [VALIDATION_HEAVY]).code != "healthy"

    def test_of_a_single_one_is_only_told_that_it_was_there(self) -> None:
        planted = self.training([50], 5000).profile((None, 5.0, self.CALLS[2]), steps=[50])
        found = one(VALIDATION_HEAVY.find(planted.watched()))
        assert found.severity == "hint" and "it came once in 25 s" in found.sentence

    @pytest.mark.parametrize("known", [1, 25])
    def test_the_training_s_own_calls_are_none(self, known: int) -> None:
        assert not list(VALIDATION_HEAVY.find(self.training([], 0, known).watched()))

    def test_a_moderate_one_is_left_alone(self) -> None:
        planted = self.training(STEPS[99::100], 300).profile(self.CALLS, steps=STEPS[99::100])
        assert not list(VALIDATION_HEAVY.find(planted.watched()))

    def test_what_sampled_steps_do_too_is_told_by_these(self) -> None:
        known = ("validation", *self.CALLS[1:])
        planted = self.training(STEPS, 300).profile(known, steps=STEPS[4::5]).profile(self.CALLS, steps=self.EVERY)
        assert not list(VALIDATION_HEAVY.find(planted.watched()))

    @pytest.mark.parametrize("trains", [True, False], ids=["trains", "in the loop itself"])
    def test_what_is_no_function_of_its_own_is_left_open(self, trains: bool) -> None:
        around = ("train (train.py:8)", "penalize (train.py:40)") if trains else ("train (train.py:8)",)
        planted = self.training(self.EVERY, 400).profile((None, 0.3, (*around, CALL)), steps=self.EVERY)
        planted.profile(
            ("backward", 0.1, (*around, "_engine_run_backward (torch/autograd/graph.py:9)")), steps=self.EVERY
        )
        with pytest.raises(SilentError, match="not certain") as told:
            list(VALIDATION_HEAVY.find(planted.watched()))
        assert told.value.code == "undecided"

    def test_a_server_does_not_validate(self) -> None:
        serves = Planted().steps(200, noise=0.0, validation=90, other=10).profile(self.CALLS, steps=self.EVERY)
        assert not list(VALIDATION_HEAVY.find(serves.watched()))


def seconds(step_s: Callable[[int], float], cpu_s: Callable[[int], float], waits: float = 0.0) -> Planted:
    """Steps of a duration and a time on cores that depend on the step, and a row of the host for each second."""
    planted, steps, host, ns, sampled_ns, used, step = Planted(), list[object](), list[object](), 0, 0, 0.0, 0
    while ns < 30e9:
        duration = step_s(step)
        steps.append({"step": step, "start_ns": ns, "duration": duration, "eval_duration": 0.0, "samples": 32})
        ns, step, used = ns + int(1e9 * duration), step + 1, used + cpu_s(step)
        if ns - sampled_ns >= 1e9:
            cpu_pct = 100 * used / ((ns - sampled_ns) / 1e9)
            host.append({"step": step, "start_ns": ns, "cpu_pct": cpu_pct, "core_wait_pct": waits})
            sampled_ns, used = ns, 0.0
    return planted.plant("python.step_trace", steps).plant("host.process_trace", host)  # type: ignore[arg-type]


class TestSteps:
    noise = np.random.default_rng(1).normal(1, 0.05, 5000)
    rough = 1 + 0.3 * np.sin(np.arange(5000) / 20)

    def grows(self, step: int) -> float:
        return float((0.05 + 0.0001 * step) * self.noise[step])

    def steady(self, step: int) -> float:
        return float(0.05 * self.noise[step])

    def test_steps_that_grow_are_found_with_the_function_that_does(self) -> None:
        planted = seconds(self.grows, self.grows)
        for step in range(0, 500, 20):
            planted.profile(
                BACKWARD, ("other", 0.0001 * step, ("train (train.py:9)", "remember (train.py:12)")), steps=[step]
            )
        found = one(STEP_GROWING.find(planted.watched()))
        per_step = float(found.sentence.split(" takes ")[1].split(" ")[0])
        assert found.severity == "critical" and per_step == pytest.approx(100, rel=0.15)
        assert found.where.startswith("remember (train.py:12), ")

    def test_a_function_that_takes_more_and_more_of_the_step_shows_through_what_the_machine_does(self) -> None:
        planted = seconds(
            lambda step: self.grows(step) * 3, lambda step: self.grows(step) * self.rough[step], waits=60.0
        )
        for step in range(0, 200, 5):
            planted.profile(
                BACKWARD, ("other", 0.0001 * step, ("train (train.py:9)", "remember (train.py:12)")), steps=[step]
            )
        assert one(STEP_GROWING.find(planted.watched())).where.startswith("remember (train.py:12), ")
        with pytest.raises(SilentError, match=UNDECIDED):
            list(STEP_GROWING.find(planted.watched(why_not_profiled="it was refused")))

    @pytest.mark.parametrize("resumed_at", [0, 500_000])
    def test_of_a_record_longer_than_the_watch_figures_are_those_of_its_steps(self, resumed_at: int) -> None:
        def takes(step: int) -> float:
            return 0.05 + 0.0005 * step

        planted = seconds(takes, takes)
        for table in ("python.step_trace", "host.process_trace"):
            planted.database.execute(f"UPDATE {table} SET step = step + {resumed_at}")
        watched = planted.watched(first=resumed_at + 230)
        found = one(STEP_GROWING.find(watched))
        slope, *told = map(float, re.findall(r"[\d.]+", found.sentence))
        assert slope == pytest.approx(500, rel=0.05)
        for ms, step in (told[:2], told[2:]):
            assert ms == pytest.approx(1e3 * takes(int(step) - resumed_at), rel=0.05)
        assert found.share == pytest.approx(1 - 1e-3 * told[0] / watched.step_s, rel=0.1)

    def test_what_a_function_adds_is_told_of_the_steps_in_which_that_was_seen(self) -> None:
        planted = seconds(
            lambda step: self.grows(step) * 3, lambda step: self.grows(step) * self.rough[step], waits=60.0
        )
        for step in range(40, 200, 2):
            planted.profile(
                BACKWARD, ("other", 0.0001 * step, ("train (train.py:9)", "remember (train.py:12)")), steps=[step]
            )
        found = one(STEP_GROWING.find(planted.watched(first=40)))
        assert re.search(r"at step 4\d, .* at step 19\d\.$", found.sentence)

    def test_a_machine_that_becomes_busy_does_not_make_them_grow(self) -> None:
        assert not list(STEP_GROWING.find(seconds(self.grows, self.steady, waits=40.0).watched()))

    def test_on_a_busy_machine_they_are_seen_to_grow_by_their_time_on_cores(self) -> None:
        planted = seconds(lambda step: 0.1 * float(self.noise[step]) ** 8, self.grows, waits=40.0)
        assert one(STEP_GROWING.find(planted.profile(BACKWARD).watched())).seconds

    def test_steps_that_were_slowed_down_at_one_moment_do_not_grow(self) -> None:
        planted = seconds(
            lambda step: self.steady(step) * (1 + (step > 300)), lambda step: self.steady(step) * (1 + (step > 300))
        )
        with pytest.raises(SilentError, match=UNDECIDED):
            list(STEP_GROWING.find(planted.watched()))

    def test_steps_that_grow_once_the_job_has_settled_are_found(self) -> None:
        def settles(step: int) -> float:
            return float(max(0.16 - 0.0016 * step, 0.06) * self.noise[step])

        planted = seconds(lambda step: settles(step) + 0.0002 * max(0, step - 60), settles)
        assert not list(STEP_GROWING.find(planted.watched()))  # not on cores
        planted = seconds(*2 * [lambda step: settles(step) + 0.0002 * max(0, step - 60)])
        assert one(STEP_GROWING.find(planted.watched())).severity == "critical"

    def test_steps_that_may_grow_are_left_open(self) -> None:
        def rough(step: int) -> float:
            return self.grows(step) * float(self.rough[3 * step])

        with pytest.raises(SilentError, match=UNDECIDED) as told:
            list(STEP_GROWING.find(seconds(rough, rough).watched()))
        assert told.value.code == "undecided"

    def test_steps_that_do_not_grow_are_left_alone(self) -> None:
        assert not list(STEP_GROWING.find(seconds(self.steady, self.steady).watched()))

    def test_ranks_that_stood_for_a_while_are_no_error(self) -> None:
        planted = seconds(self.steady, self.steady)
        stood = {"step": 600, "cpu_pct": 1.0, "core_wait_pct": 0.0}
        planted.plant("host.process_trace", [{**stood, "start_ns": (30 + at) * 10**9} for at in range(10)])
        for table in ("python.step_trace", "host.process_trace"):
            planted.database.execute(f"INSERT INTO {table} SELECT * REPLACE (1 AS rank) FROM {table}")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert not list(STEP_GROWING.find(planted.watched()))

    def test_a_short_record_does_not_tell(self) -> None:
        with pytest.raises(SilentError, match="too short"):
            list(STEP_GROWING.find(Planted().steps(60, forward=40).watched()))


class TestSampling:
    def watched(self, factor: float) -> Watched:
        """Steps of which sampled ones take so many times as long as the others."""
        planted = Planted().steps(400, noise=0.1, forward=40, backward=60)
        planted.database.execute(f"UPDATE python.step_trace SET duration = duration * {factor} WHERE sampled")
        return planted.watched()

    def test_sampled_steps_that_take_longer_are_a_hint(self) -> None:
        found = one(UNREPRESENTATIVE_SAMPLING.find(self.watched(2.0)))
        assert found.sentence.startswith("Sampled steps take 33 % more time") and found.severity == "hint"

    def test_all_are_sampled_for_a_while_only(self) -> None:
        assert one(UNREPRESENTATIVE_SAMPLING.find(self.watched(2.0))).remedy == "probe 4242 set sample=1 for=1600"

    def test_sampled_steps_that_take_less_are_a_hint(self) -> None:
        assert "less time" in one(UNREPRESENTATIVE_SAMPLING.find(self.watched(0.6))).sentence

    def test_a_small_difference_is_none(self) -> None:
        assert not list(UNREPRESENTATIVE_SAMPLING.find(self.watched(1.15)))

    @pytest.mark.parametrize(("blocks", "few"), [((1, 3), "sampled"), ((2, 4), "unsampled")])
    def test_of_which_steps_there_are_too_few_is_told(self, blocks: tuple[int, ...], few: str) -> None:
        planted = Planted().steps(120, forward=40)
        planted.database.execute(
            f"UPDATE python.step_trace SET sampled = (step // 10 IN {blocks}) = {few == 'sampled'}"
        )
        told = judge(planted.watched(), [UNREPRESENTATIVE_SAMPLING])
        assert told.skipped == {UNREPRESENTATIVE_SAMPLING.code: f"Fewer than 40 {few} steps tell how long they take"}
        assert f"could not: fewer than 40 {few} steps." in told.parts()["Looked"][0]


def test_figures_are_per_step_and_not_per_second() -> None:
    found = one(PERIODIC_STALL.find(training(STEPS[9::10], 500).profile(LOG, steps=STEPS[9::10]).watched()))
    assert found.seconds is not None and found.share == pytest.approx(found.seconds / 0.15, rel=0.02)
    assert MS < found.seconds < 0.15


def test_small_figures_have_a_unit_in_which_they_can_be_read() -> None:
    assert [us(each) for each in (2e-5, 3e-7, 3e-8)] == ["20 µs", "0.30 µs", "30 ns"]


class TestEstimates:
    """What a step would take: a consequence of what was measured, under an assumption that is told."""

    EVERY = STEPS[9::10]

    def cost(self, planted: Planted, rule: Rule[Watched]) -> tuple[Finding, str]:
        """The finding, and its line for a person."""
        told = judge(planted.watched(), [rule])
        return told.findings[0].finding, told.parts()["Cost"][0]

    def on_cuda(self, planted: Planted) -> Planted:
        return planted.plant("python.torch_trace", [{"step": 20, "stage": "forward", "device": "cuda:0"}])

    def test_checkpoints_and_stalls_cost_half_as_much_half_as_often(self) -> None:
        found, line = self.cost(training(self.EVERY, 400).profile(SAVE, steps=self.EVERY), CHECKPOINT_STALL)
        assert found.saves == pytest.approx(0.02, rel=0.03)
        assert line.startswith("40 ms of 140 ms a step; 2") and line.endswith(" with half as many checkpoints.")
        stall = training(self.EVERY, 500).profile(LOG, steps=self.EVERY)
        found, line = self.cost(stall, PERIODIC_STALL)
        assert found.saves == pytest.approx(0.025, rel=0.03) and line.endswith(" with log_histograms half as often.")
        assert self.cost(self.on_cuda(stall), PERIODIC_STALL)[0].saves is None  # the device may work meanwhile

    def test_a_validation_costs_half_as_much_half_as_often(self) -> None:
        planted = training(STEPS[19::20], 400).profile(TestValidation.CALLS, steps=STEPS[19::20])
        found, line = self.cost(TestValidation().calls(planted), VALIDATION_HEAVY)
        assert found.saves == (found.seconds or 0) / 2 and line.endswith(" with half as many calls of evaluate.")
        by_phase = TestValidation().calls(training(validation=50)).watched(why_not_profiled="it was refused")
        found = one(VALIDATION_HEAVY.find(by_phase))
        assert found.saves == (found.seconds or 0) / 2 and found.assumes == "with half as much of it"

    def test_python_outside_of_the_model_would_save_its_function_s_part(self) -> None:
        log = ("other", 0.005, ("train (train.py:9)", "log (train.py:40)"))
        planted = training(other=40).profile(TestPythonOutsideTheModel.COUNT, log, steps=STEPS, holds_gil=True)
        found, line = self.cost(planted, PYTHON_OUTSIDE_MODEL)
        assert found.saves == pytest.approx((found.seconds or 0) * 40 / 45) and found.saves < (found.seconds or 0)
        assert line.endswith(" if count_confusions took no time.")
        assert self.cost(self.on_cuda(planted), PYTHON_OUTSIDE_MODEL)[0].saves is None

    def test_of_several_ranks_python_of_one_may_not_be_what_they_wait_for(self) -> None:
        planted = Planted().steps(len(STEPS), ranks=(0, 1), noise=0.02, forward=40, backward=50, other=40)
        for rank in (0, 1):
            planted.profile(FORWARD, TestPythonOutsideTheModel.COUNT, steps=STEPS, holds_gil=True, rank=rank)
        assert self.cost(planted, PYTHON_OUTSIDE_MODEL)[0].saves is None

    def test_steps_that_grow_would_take_as_long_as_at_first(self) -> None:
        def grows(step: int) -> float:
            return 0.05 + 0.0001 * step

        watched = seconds(grows, grows).watched()
        found = one(STEP_GROWING.find(watched))
        first = int(found.assumes.removeprefix("if each took as long as step "))
        without_s = watched.step_s - (found.saves or 0)
        assert without_s == pytest.approx(grows(first), rel=0.03)
        assert f"{figures.ms(without_s)} at step {first}," in found.sentence
