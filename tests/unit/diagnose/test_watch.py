"""How long `probe why` watches: until a cause is plain, else for its time, and what it has sampled meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from planted import MS, Planted

from probe.diagnose import watch
from probe.diagnose import why as module
from probe.diagnose.figures import figure
from probe.diagnose.hang.report import Report
from probe.diagnose.rule import Finding, Rule
from probe.diagnose.watched import Watched
from probe.diagnose.why import why
from probe.errors import SilentError
from probe.host.facts import Facts
from probe.query.result import Result

LOOP = ("train (train.py:9)", "remember (train.py:12)")
MODEL = ("train (train.py:9)", "Module._call_impl (torch/nn/modules/module.py:1)", "Model.forward (train.py:3)")


class Clock:
    """Time passes when it is slept for."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Watchable(Planted):
    """A job whose steps are over as time passes: so many ms of each phase.  It has stepped for some seconds before."""

    def __init__(self, clock: Clock, *, stepped_s: float = 10.0, **phases: float) -> None:
        super().__init__()
        self._clock, self._phases, self._last = clock, phases, 0
        self.unreached: list[Any] = []
        self.settings: list[dict[str, Any]] = []
        self.profiled: list[float] = []
        if stepped_s:
            self._step_for(stepped_s)

    def _step_for(self, seconds: float) -> None:
        count = int(seconds * 1000 / sum(self._phases.values()))
        steps = range(self._last + 1, self._last + count + 1)
        self.steps(count, first=steps.start, seed=steps.start, **self._phases)
        batch = {"loader": "train_loader", "num_workers": 0, "failed": False, "ready": 0}
        wait = {"wait_duration": self._phases["data"] * MS}
        self.plant("python.dataloader_trace", [{"step": step, **batch, **wait} for step in steps])
        if outside := self._phases.get("other"):
            super().profile(("other", outside * MS, LOOP), ("forward", 20 * MS, MODEL), steps=steps)
        self._last += count

    def hang(self, look_s: float = 1.0) -> Report:
        return Report("healthy", "It steps.", False)

    def profile(self, seconds: float) -> None:
        self.profiled.append(seconds)
        self._clock.sleep(seconds)
        self._step_for(seconds)

    def set(self, **settings: Any) -> None:
        self.settings.append(settings)

    def eval(self, code: str, **_: Any) -> list[Any]:
        return []


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(watch, "time", clock)
    return clock


def test_half_of_the_step_is_plain_after_the_first_look(clock: Clock) -> None:
    job = Watchable(clock, data=60, forward=20, backward=20)
    told = why(job)
    assert told.code == "input-bound" and job.profiled == [10.0] and told.seconds == 10


def test_what_is_not_plain_is_watched_to_the_end(clock: Clock) -> None:
    job = Watchable(clock, data=40, forward=30, backward=30)
    told = why(job)
    assert told.code == "input-bound" and job.profiled == [10.0, 15.0] and told.seconds == 25
    assert told.steps == pytest.approx(250, abs=5)  # of both looks


def test_a_first_look_that_took_long_to_judge_keeps_its_profile(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    judge = module.judge

    def slowly(watched: Watched) -> Any:
        clock.sleep(20)
        assert not watched.why_not_profiled
        return judge(watched)

    monkeypatch.setattr(module, "judge", slowly)
    job = Watchable(clock, data=40, forward=30, backward=30)
    assert why(job).code == "input-bound" and job.profiled == [10.0]


def test_a_second_profile_that_fails_leaves_the_first(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    judge, told = module.judge, list[str]()

    def listening(watched: Watched) -> Any:
        told.append(watched.why_not_profiled)
        return judge(watched)

    monkeypatch.setattr(module, "judge", listening)
    job = Watchable(clock, data=40, forward=30, backward=30)
    profile = job.profile

    def once(seconds: float) -> None:
        if job.profiled:
            raise SilentError("Another command profiles it.")
        profile(seconds)

    monkeypatch.setattr(job, "profile", once)
    why(job)
    assert told == ["", ""]


def test_what_may_have_a_cause_that_shows_only_later_is_not_plain(clock: Clock) -> None:
    job = Watchable(clock, data=0, other=60, forward=20, backward=20)
    assert why(job).code == "python-outside-model" and job.profiled == [10.0, 15.0]


def test_a_first_look_needs_steps(clock: Clock) -> None:
    job = Watchable(clock, data=90, forward=30, backward=30)
    assert why(job).code == "input-bound" and job.profiled == [25.0]


def test_long_steps_are_watched_for_longer(clock: Clock) -> None:
    job = Watchable(clock, data=900, forward=300, backward=300)
    assert why(job).steps == pytest.approx(40, abs=3) and job.profiled == [pytest.approx(60, rel=0.02)]


def test_who_says_for_how_long_has_it_watched_for_so_long(clock: Clock) -> None:
    job = Watchable(clock, data=60, forward=20, backward=20)
    assert why(job, 12.0).seconds == 12 and job.profiled == [12.0]


@pytest.mark.parametrize(
    ("seconds", "stepped_s", "bars"),
    [
        (None, 10.0, ["of 25 s", "over after 25 s"]),
        (None, 0.0, ["of 120 s", "over after 10 s", "of 25 s", "over after 35 s"]),
        (12.0, 0.0, ["of 12 s", "over after 12 s"]),
    ],
)
def test_the_progress_is_of_the_whole_watch_and_ends_with_it(
    clock: Clock, seconds: float | None, stepped_s: float, bars: list[str]
) -> None:
    shown: list[str] = []

    @contextmanager
    def progress(seconds: float) -> Iterator[None]:
        shown.append(f"of {seconds:.0f} s")
        yield
        shown.append(f"over after {clock.now:.0f} s")

    why(Watchable(clock, stepped_s=stepped_s, data=40, forward=30, backward=30), seconds, progress)
    assert shown == bars


def test_its_steps_are_sampled_for_as_long_as_it_may_watch(clock: Clock) -> None:
    job = Watchable(clock, data=60, forward=20, backward=20)
    why(job)
    ((sample, for_steps),) = (each.values() for each in job.settings)
    assert sample == 2 and for_steps == pytest.approx(270, abs=5)


@pytest.mark.parametrize("open_until_s", [26, 60])
def test_what_is_left_open_gets_some_seconds_more(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, open_until_s: float
) -> None:
    def find(watched: Watched) -> Iterator[Finding]:
        if watched.seconds < open_until_s:
            raise SilentError("It is open.", code="undecided")
        yield Finding("It is found.", severity="warning")

    monkeypatch.setattr(module, "judge", partial(module.judge, rules=[Rule("found", "", find, needs=("a",))]))
    job = Watchable(clock, data=1, forward=50, backward=49)
    told = why(job)
    assert job.profiled == [10.0, 15.0, 5.0] and told.seconds == 30
    assert told.code == ("found" if open_until_s < 30 else "healthy") and bool(told.undecided) == (open_until_s > 30)


def test_what_is_left_open_after_the_seconds_that_were_asked_for_stays_open(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(watched: Watched) -> Iterator[Finding]:
        raise SilentError("It is open.", code="undecided")

    monkeypatch.setattr(module, "judge", partial(module.judge, rules=[Rule("found", "", find, needs=("a",))]))
    job = Watchable(clock, data=1, forward=50, backward=49)
    assert why(job, 12.0).seconds == 12 and job.profiled == [12.0]


class JustAttached(Watchable):
    """No whole step of it has been seen yet, and one ends whenever so much time has passed."""

    def _step_for(self, seconds: float) -> None:
        if not self._last:
            self.plant("python.step_trace", [{"step": 1, "sampled": False}])
            self._last = 1

    def query(self, sql: str) -> Result:
        step_s = sum(self._phases.values()) * MS
        if (new := 1 + int(self._clock.now / step_s) - self._last) > 0:
            super()._step_for((new + 0.5) * step_s)
        return super().query(sql)

    def hang(self, look_s: float = 1.0) -> Report:
        self._clock.sleep(look_s)
        return Report("unknown", "Unknown: no step and no collective has been seen yet.", False)


@pytest.fixture
def passing(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Looks take time, too."""
    monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.mark.parametrize("step_s", [2, 7])
def test_the_first_whole_step_tells_for_how_long_to_watch(passing: Clock, step_s: int) -> None:
    job = JustAttached(passing, data=600 * step_s, forward=200 * step_s, backward=200 * step_s)
    told = why(job)
    assert told.code == "input-bound" and told.steps == pytest.approx(40, abs=3)
    assert job.profiled == [pytest.approx(41 * step_s, abs=2 * step_s)]
    assert told.seconds == pytest.approx(job.profiled[0]) and job.settings[0]["sample"] == 1


def test_the_wait_for_a_whole_step_is_part_of_the_seconds_that_were_asked_for(passing: Clock) -> None:
    job = JustAttached(passing, data=6000, forward=2000, backward=2000)
    assert why(job, 60.0).seconds == pytest.approx(60) and job.profiled[0] < 60


def test_of_steps_of_half_a_minute_as_many_as_there_are_are_judged(passing: Clock) -> None:
    job = JustAttached(passing, data=10000, forward=10000, backward=10000)
    told = why(job)
    assert job.profiled[0] == pytest.approx(watch.MOST_S) and told.code == "unknown" and 8 <= told.steps <= 10


def test_a_job_without_a_whole_step_in_two_minutes_gets_the_verdict_on_its_state(passing: Clock) -> None:
    job = JustAttached(passing, data=600_000)
    told = why(job)
    assert (told.code, told.steps, job.profiled) == ("slow", 0, []) and told.sentence.startswith("Unknown: no step")
    assert watch.FIRST_S <= passing.now < watch.FIRST_S + 10


class NeverSteps(JustAttached):
    """It computes, and takes no step; its main thread stands in these frames."""

    def __init__(self, clock: Clock, *frames: str) -> None:
        self.frames = frames
        super().__init__(clock, data=600_000)

    def _step_for(self, seconds: float) -> None:
        pass

    def profile(self, seconds: float) -> None:  # type: ignore[override]
        self.profiled.append(seconds)
        self._clock.sleep(seconds)
        now = datetime.now(timezone.utc).replace(tzinfo=None)
        Planted.profile(self, (None, seconds, self.frames), steps=(0,), time=now)

    def query(self, sql: str) -> Result:
        return Planted.query(self, sql)


def test_a_job_that_computes_and_takes_no_step_gets_a_verdict_with_where_it_is(passing: Clock) -> None:
    job = NeverSteps(passing, "main (pre.py:20)", "clean (pre.py:3)", "sum (numpy/core/fromnumeric.py:2)")
    told = why(job)
    assert told.sentence == "No step was taken in 20 s: the main thread was in clean (pre.py:3) for 100 % of the time."
    assert (told.code, told.severity, told.steps, job.profiled) == ("slow", "none", 0, [5.0] * 3)
    assert told.findings[0].finding.why == ["15 s of that were profiled"] and passing.now < 40


def test_a_job_without_a_step_whose_model_is_at_work_is_waited_for(passing: Clock) -> None:
    model = "Module._call_impl (torch/nn/modules/module.py:1)"
    told = why(NeverSteps(passing, "train (train.py:9)", model, "Model.forward (train.py:3)"))
    assert told.sentence.startswith("No step was taken in 120 s: the main thread was in Model.forward")
    assert watch.FIRST_S <= passing.now < watch.FIRST_S + 10


@pytest.mark.parametrize("seconds", [8.0, 60.0])
def test_a_job_without_a_step_is_waited_for_as_long_as_was_asked_for(passing: Clock, seconds: float) -> None:
    told = why(NeverSteps(passing, "clean (pre.py:3)"), seconds)
    assert told.sentence.startswith(f"No step was taken in {figure(seconds)} s:") and told.findings[0].finding.where


@pytest.mark.parametrize("code", ["stands", "idle"])
def test_a_job_without_a_step_that_is_stuck_or_idle_is_told_as_such(
    passing: Clock, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    job = NeverSteps(passing, "clean (pre.py:3)")
    reports = [Report("unknown", "Unknown.", False)] * 6 + [Report(code, "It waits.", code == "stands")]
    monkeypatch.setattr(job, "hang", lambda look_s=1.0: passing.sleep(1.0) or reports.pop(0))
    assert why(job).sentence == "It waits."


def test_a_job_that_steps_no_more_gets_the_verdict_on_its_state(clock: Clock) -> None:
    class Stopping(Watchable):
        def profile(self, seconds: float) -> None:
            self.hang = lambda look_s=1.0: Report("stands", "It stands.", True)  # type: ignore[method-assign]
            self._clock.sleep(seconds)

    told = why(Stopping(clock, data=60, forward=20, backward=20))
    assert (told.code, told.severity, told.sentence) == ("hung", "critical", "It stands.")


@pytest.mark.parametrize(("step_s", "wait_s"), [(0.2, 5), (6, 18)])
def test_a_value_of_the_job_is_waited_for_as_long_as_some_steps_take(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, step_s: float, wait_s: float
) -> None:
    class Answering(Watchable):
        def eval(self, code: str, **options: Any) -> list[Any]:
            waits.append(options["timeout"])
            return []

    def find(watched: Watched) -> Iterator[Finding]:
        watched.read("model.training")
        yield Finding("It is found.", severity="warning")

    waits = list[float]()
    monkeypatch.setattr(module, "judge", partial(module.judge, rules=[Rule("found", "", find, needs=("a",))]))
    why(Answering(clock, data=500 * step_s, forward=500 * step_s))
    assert waits[0] == pytest.approx(wait_s, rel=0.1)


def test_a_value_is_read_on_one_rank_of_each_host(clock: Clock) -> None:
    class Answering(Watchable):
        def eval(self, code: str, *, ranks: Sequence[int], **_: Any) -> list[Any]:
            return [SimpleNamespace(ok=rank != 3, echo=f"{code} of {rank}") for rank in ranks if rank < 4]

    job = Answering(clock, data=60, forward=20)
    job.agents = [Facts(rank=rank, host=host) for rank, host in enumerate(("a", "b", "a", "c"))]
    read = watch.Reader(job, 5.0)
    assert (read("x"), read.elsewhere("x")) == ("x of 0", ["x of 1", None])
    job.agents.append(Facts(rank=4, host="d"))
    assert read.elsewhere("x") == [None] * 3, "one of them gave no answer"
    assert not read.answers and read("x") is None


@pytest.mark.parametrize(("step_s", "wait_s", "looks"), [(0.1, 5, 2), (30, 60, 1)])
def test_a_job_in_which_no_value_can_be_read_is_asked_once(
    passing: Clock, monkeypatch: pytest.MonkeyPatch, step_s: float, wait_s: float, looks: int
) -> None:
    class Silent(JustAttached):
        def eval(self, code: str, **options: Any) -> list[Any]:
            waits.append(options["timeout"])
            passing.sleep(options["timeout"])
            raise SilentError("No boundary came.")

    def find(watched: Watched) -> Iterator[Finding]:
        answers.append(watched.read("model.training"))
        yield from ()

    waits, answers = list[float](), list[str | None]()
    monkeypatch.setattr(module, "judge", partial(module.judge, rules=[Rule("found", "", find, needs=("a",))]))
    why(Silent(passing, data=500 * step_s, forward=500 * step_s))
    assert waits == [pytest.approx(wait_s)] and answers == looks * [None]
