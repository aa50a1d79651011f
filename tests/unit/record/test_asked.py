"""What a recorder asks its job, and when; the job and its connection are played."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from probe.diagnose.change.effects import effects
from probe.diagnose.hang.report import Report
from probe.diagnose.measures.live_values import ALL_OPTIMIZERS, filled, of_frame
from probe.diagnose.rules import ON_TABLES
from probe.errors import SilentError
from probe.host.facts import Facts
from probe.record import asked
from probe.record.asked import Asked

S = 1_000_000_000
HUNG, SLOW = Report("waiting", "Rank 1 waits.", True), Report("slow", "It is slow.", False)


class Played:
    """A job, the connection to it, and the clock."""

    def __init__(self) -> None:
        self.now_s, self.last_step_s, self.count, self.report = 1000.0, 1000.0, 50, HUNG
        self.names: dict[str, Any] = {"model": SimpleNamespace(named_modules=list)}
        self.answers = self.is_there = True
        self.evals: list[str] = []
        self.looks = 0

    def monotonic(self) -> float:
        return self.now_s

    def monotonic_ns(self) -> int:
        return int(self.now_s * S)

    def time_ns(self) -> int:
        return int(self.now_s * S)

    # ---- as RecordedJob

    def said(self) -> list[Facts]:
        facts = Facts(rank=0, count=self.count, attached_ns=S, last_step_ns=int(self.last_step_s * S))
        return [facts] if self.is_there else []

    def models(self) -> set[str]:
        return {"model"}

    # ---- as Connection

    agents = (Facts(rank=0),)
    is_unwanted: Callable[[], bool]

    def __enter__(self) -> Played:
        if not self.answers:
            raise SilentError("It does not answer.")
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def cancel(self) -> None:
        pass

    def eval(self, code: str, **_: Any) -> list[Any]:
        self.evals.append(code)
        names = dict(self.names)
        exec(code.strip().rpartition("\n")[0], names)
        return [SimpleNamespace(echo=repr(eval(code.strip().rpartition("\n")[2], names)))]

    def hang(self) -> Report:
        self.looks += 1
        return self.report


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Played:
    played = Played()
    monkeypatch.setattr(asked, "time", played)
    monkeypatch.setattr(asked, "Connection", lambda *_: played)
    return played


@pytest.fixture
def made(job: Played) -> Iterator[Asked]:
    made = Asked(job, lambda: None, None, 30.0)  # type: ignore[arg-type,return-value]
    yield made
    made.close()


def answered(made: Asked) -> bool:
    """Ask, and take what comes; whether anything was new."""
    new = made.ask()
    while made._answer is not None:
        made._answer[1].exception()
        if not made._answer[1].done():
            time.sleep(0.01)
        new = made.ask() or new
    return new


def at(job: Played, seconds: float, stands: bool = False) -> None:
    job.now_s = seconds
    if not stands:
        job.last_step_s = seconds


def test_values_are_read_in_two_evals_and_less_and_less_often(job: Played, made: Asked) -> None:
    assert answered(made) and len(job.evals) == 2 and made.values
    evals = {1200: 2, 1301: 3, 1800: 3, 1902: 4, 9000: 5, 11000: 5, 11401: 6, 15000: 6, 15002: 7}
    for seconds, count in evals.items():
        at(job, seconds)
        answered(made)
        assert len(job.evals) == count, seconds  # what is costly is known
    assert any(each != of_frame(each) for each in made.values)
    assert not any(effects(code, [], ok=True) for code in job.evals)  # or they would be changes of the user's


def test_what_is_costly_is_read_again_when_what_the_frame_says_has_changed(job: Played, made: Asked) -> None:
    answered(made)
    job.names["model"] = SimpleNamespace(named_modules=lambda: [("", SimpleNamespace(parameters=lambda *_: []))])
    job.names["trainer"] = job.names["model"]
    at(job, 1301)
    answered(made)
    assert len(job.evals) == 3  # it says the same
    parameter = SimpleNamespace(requires_grad=True)
    module = SimpleNamespace(parameters=lambda *_: [parameter])
    job.names["model"] = SimpleNamespace(named_modules=lambda: [("", module)])
    at(job, 3000)
    answered(made)
    assert len(job.evals) == 5
    of_model = next(made.values[each] for each in made.values if each != of_frame(each) and "named_modules" in each)
    assert of_model == "([''], [])"


@pytest.mark.parametrize(("blocks", "looks"), [(1_000_000, 1), (100_000_000, 0)])
def test_all_objects_are_gone_through_once_and_not_if_they_are_very_many(
    blocks: int, looks: int, job: Played, made: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = list[object]()
    monkeypatch.setattr(gc, "get_referrers", lambda *kinds: seen.append(kinds) or [])  # type: ignore[func-returns-value]
    monkeypatch.setattr(gc, "get_objects", lambda: pytest.fail("a loop over all objects"))
    monkeypatch.setattr(sys, "getallocatedblocks", lambda: blocks)
    answered(made)
    assert len(seen) == looks and any(each != of_frame(each) for each in made.values) == bool(looks)


def test_all_optimizers_are_found_wherever_they_lie() -> None:
    torch = pytest.importorskip("torch")
    mine = type("Mine", (torch.optim.AdamW,), {})
    held = [[kind([torch.zeros(1)])] for kind in (torch.optim.SGD, mine)]
    found = [id(optimizer) for _, optimizer in eval(ALL_OPTIMIZERS)]
    assert len(found) == len({*found}) and {id(each) for (each,) in held} <= {*found}


def test_rules_ask_for_all_that_is_read(job: Played, made: Asked) -> None:
    answered(made)
    asked_for = {*filled((each for rule in ON_TABLES for each in rule.asks), ["model"])}
    assert {*made.values} <= asked_for and len(asked_for) > 8


def test_few_steps_are_waited_for(job: Played, made: Asked) -> None:
    job.count = 9
    assert not answered(made) and not job.evals


def test_a_job_that_does_not_answer_is_asked_less_and_less(job: Played, made: Asked) -> None:
    job.answers = False
    tries = [at_s for at_s in range(1000, 1120) if _tried(job, made, at_s)]
    assert tries == [1000, 1015, 1045, 1105] and made.values == {}
    job.answers = True
    at(job, 1300)
    assert answered(made) and made.values


def _tried(job: Played, made: Asked, seconds: int) -> bool:
    at(job, seconds)
    before = made._due_s
    answered(made)
    return made._due_s != before


def test_a_job_that_stands_is_looked_at_now_and_then_until_a_step_ends(job: Played, made: Asked) -> None:
    job.count = 0
    at(job, 1029, stands=True)
    assert not answered(made) and not job.looks
    at(job, 1030, stands=True)
    assert answered(made) and made.stands and made.stands["code"] == "waiting" and job.looks == 1
    job.report = SLOW
    for seconds, looks in ((1080, 1), (1091, 2), (1180, 2), (1183, 3)):
        at(job, seconds, stands=True)
        assert not answered(made) and job.looks == looks and made.stands  # the first report is kept
    at(job, 1200)
    assert answered(made) and made.stands is None


def test_a_job_that_is_gone_keeps_what_it_said(job: Played, made: Asked) -> None:
    answered(made)
    at(job, 1100, stands=True)
    answered(made)
    before = made.said()
    job.is_there = False
    at(job, 5000)
    assert not answered(made) and made.said() == before and before["stands"]


def test_what_is_about_to_be_asked_when_it_is_closed_is_not(job: Played, made: Asked) -> None:
    made._connected()
    assert not job.is_unwanted()
    made.close()
    assert job.is_unwanted()


def test_what_no_job_has_and_what_raises_is_left_out(job: Played, made: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    rule = SimpleNamespace(asks=("1 + 1", "nowhere", "ROOT.absent", "1 / 0"))
    monkeypatch.setattr(asked, "ON_TABLES", [rule])
    answered(made)
    assert made.values == {"1 + 1": "2"}
