"""When verbs that attach have the job recorded, and what they say of what is not; attach and recorder are played."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from probe.attach import Attached
from probe.cli.entry import run
from probe.cli.recording import Recorded, telling
from probe.errors import AttachError, UsageError

FIRST, SECOND = 4250000, 4250001
BOTH = f"{FIRST},{SECOND}"
Captured = pytest.CaptureFixture[str]


class Recorders:
    """Those that were started: (endpoint, follow); each start fails with the next of `failures`."""

    def __init__(self) -> None:
        self.started: list[tuple[str, list[int]]] = []
        self.failures: list[str] = []

    def start(self, endpoint: str, order: Mapping[str, Any], key: str | None) -> str:
        if self.failures:
            raise UsageError(self.failures.pop(0))
        self.started.append((endpoint, order["follow"]))
        return "/runs/job=x"


@pytest.fixture
def recorders(monkeypatch: pytest.MonkeyPatch) -> Recorders:
    played = Recorders()
    monkeypatch.setattr("probe.record.detached.start", played.start)
    return played


def attached(pid: int, rank: int = 0) -> Attached:
    return Attached(pid, rank, 7.4, "3.11.7", "2.13.0+cpu", False, "1")


def test_all_processes_are_recorded_from_the_first_rank_on(recorders: Recorders, capfd: Captured) -> None:
    told = telling([FIRST, SECOND], Recorded("runs"), lambda each: None)
    told(attached(SECOND, 1))
    told(attached(FIRST, 0))
    assert recorders.started == [(BOTH, [FIRST, SECOND])]
    assert capfd.readouterr().err == "Recording into /runs/job=x until the job ends.\n"


def test_a_recorder_that_did_not_start_is_tried_again_with_the_next_rank(recorders: Recorders, capfd: Captured) -> None:
    recorders.failures = ["No space."]
    told = telling([FIRST, SECOND], Recorded("runs"), lambda each: None)
    told(attached(FIRST, 0))
    assert capfd.readouterr().err == "Not recorded: No space.\n"
    told(attached(SECOND, 1))
    assert recorders.started == [(BOTH, [FIRST, SECOND])]


def test_a_recorder_that_takes_a_minute_not_to_start_holds_up_one_rank_and_is_tried_again_a_minute_later(
    recorders: Recorders, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("probe.cli.recording.monotonic", lambda: now[0])

    def start(*order: Any) -> str:
        if not recorders.started:
            now[0] += 60
        return recorders.start(*order)

    monkeypatch.setattr("probe.record.detached.start", start)
    recorders.failures = ["It did not start."]
    told = telling([FIRST, SECOND], Recorded("runs"), lambda each: None)
    for rank in range(8):
        told(attached(FIRST, rank))
    assert now == [1060] and not recorders.started
    now[0] += 60
    told(attached(SECOND, 8))
    assert len(recorders.started) == 1


def test_a_rank_of_another_job_is_not_recorded_and_one_that_was_started_anew_is(
    recorders: Recorders, monkeypatch: pytest.MonkeyPatch, capfd: Captured
) -> None:
    ended = set[int]()
    monkeypatch.setattr("probe.host.processes.has_ended", ended.__contains__)
    told = telling([FIRST, SECOND], Recorded("runs"), lambda each: None)
    told(attached(FIRST))
    told(attached(SECOND))
    assert f"Not recorded: rank 0  pid {SECOND}, which is of another job than pid {FIRST}.\n" in capfd.readouterr().err
    ended.add(FIRST)
    told(attached(SECOND))
    assert capfd.readouterr().err == "" and len(recorders.started) == 1


@pytest.mark.parametrize("form", [[], ["--json"]])
@pytest.mark.parametrize("failures", [[], ["No space."]])
def test_ranks_that_are_attached_are_recorded_also_if_others_have_failed(
    form: list[str], failures: list[str], recorders: Recorders, monkeypatch: pytest.MonkeyPatch, capfd: Captured
) -> None:
    def attach(pid: int, *_: object) -> Attached:
        if pid == SECOND:
            raise AttachError("A debugger traces it already.", "End it first.", code="traced")
        return attached(pid)

    recorders.failures = [*failures]
    monkeypatch.setattr("probe.attach.attach", attach)
    monkeypatch.setattr("probe.cli.verbs.job.attach.ranks_of", lambda pids, *_: {FIRST: 0, SECOND: 1})
    assert run(["attach", "--record", "runs", str(FIRST), str(SECOND), *form]) == 4
    err = capfd.readouterr().err
    assert recorders.started == ([] if failures else [(BOTH, [])])
    assert ("Not recorded: No space.\n" if failures else "Recording into /runs/job=x until the job ends.\n") in err
    assert "Not recorded: rank 1.\n" in err


def test_where_no_rank_is_attached_no_recorder_is_started(
    recorders: Recorders, monkeypatch: pytest.MonkeyPatch
) -> None:
    def attach(pid: int, *_: object) -> Attached:
        raise AttachError("A debugger traces it already.", "End it first.", code="traced")

    monkeypatch.setattr("probe.attach.attach", attach)
    monkeypatch.setattr("probe.cli.verbs.job.attach.ranks_of", lambda pids, *_: {FIRST: 0})
    assert run(["attach", "--record", "runs", str(FIRST)]) == 4 and recorders.started == []


def test_a_recorder_in_the_foreground_is_ended_before_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    told = list[str]()

    def recorder(*_: Any) -> None:
        told.append("records")
        raise UsageError("No.")

    monkeypatch.setattr("probe.client.endpoints.resolve", lambda endpoint: SimpleNamespace(endpoint=endpoint))
    monkeypatch.setattr("probe.serve.confinement.end_first", lambda: told.append("is ended first"), raising=False)
    monkeypatch.setattr("probe.record.recorder.agents_of", lambda endpoint: None)
    monkeypatch.setattr("probe.record.recorder.Recorder", recorder)
    assert run([str(FIRST), "record", "runs"]) == 2
    assert told == ["is ended first", "records"]
