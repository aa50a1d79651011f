"""The seam of the taps: who is switched off by whose fault, and what the registry needs of each tap."""

from __future__ import annotations

import json
from mmap import mmap
from types import SimpleNamespace
from typing import Any

import pytest
import torch  # noqa: F401 - the hooks take the file name of one of its modules
from preempting import Preempted, preempt, preempting

from probe.agent.steps.sampling import Sampling
from probe.agent.taps import torch_taps
from probe.agent.taps.collectives.works import Works
from probe.agent.taps.device.calls import marks_on
from probe.agent.taps.registry import TAPS
from probe.agent.taps.tap import Tap, TapContext
from probe.agent.taps.torch_taps import states_of
from probe.streams import BARE, HEADER_HALVES
from probe.tables.declaration import TAPS as COLUMNS


class Recorded(Tap):
    """A tap that notes how it is switched."""

    def __init__(self, *off_after: str) -> None:
        self.name, self.off_after = off_after[0] if off_after else "", off_after  # type: ignore[misc]
        self.switched: list[int] = []

    def switch(self, flags: int, spend: Any = None) -> None:
        self.switched.append(flags)


def made(**taps: Recorded) -> TapContext:
    part: Any = None
    return TapContext(part, part, part, part, part, part, part, dict(taps))


def test_the_first_fault_switches_off_the_taps_that_depend_on_it_and_no_other() -> None:
    forward, loader = Recorded("forward", "backward"), Recorded("loader")
    context = made(forward=forward, loader=loader)
    report = context.reporter("forward")
    report(ValueError("loader: a text that names another tap"))
    report(ValueError("later"))
    assert context.faults == {"forward": "forward: ValueError('loader: a text that names another tap')"}
    assert (forward.switched, loader.switched) == ([BARE], [])


@pytest.mark.parametrize("text", ["x", "\\", '"', "\N{LATIN SMALL LETTER U WITH DIAERESIS}"])
def test_facts_have_room_for_a_fault_of_every_tap_however_long(text: str) -> None:
    context = made()
    for tap in TAPS:
        context.reporter(tap.name)(ValueError(text * 100_000))
    assert len(json.dumps(context.faults)) < (HEADER_HALVES[1] - HEADER_HALVES[0]) // 2
    context.reporter("another")(ValueError(text))
    assert context.faults["another"] == f"another: {ValueError(text)!r}"


def test_what_a_signal_handler_raises_in_a_hook_reaches_the_job_and_is_no_fault() -> None:
    forward = Recorded("forward")
    context = made(forward=forward)
    report = context.reporter("forward")

    def hook() -> None:
        try:
            preempt()
        except Exception as error:
            report(error)

    with preempting(), pytest.raises(Preempted):
        hook()
    assert not context.faults and not forward.switched


def test_what_a_signal_handler_raises_while_a_work_is_polled_reaches_the_job() -> None:
    works = Works(mmap(-1, 4096))
    works.poll_later(0, 0, SimpleNamespace(is_completed=preempt), False, False)
    with preempting(), pytest.raises(Preempted):
        works.poll()


def test_a_tap_that_anothers_fault_switched_off_says_so() -> None:
    device = Recorded("device", "forward", "backward")
    device.why_off = "no such device"
    taps = [Recorded("forward", "backward"), device, Recorded("loader")]
    assert states_of(taps, {}) == {"forward": "on", "device": "off: no such device", "loader": "on"}
    fault = "backward: ValueError()"
    assert states_of(taps, {"backward": fault}) == {
        "forward": f"off: {fault}",
        "device": f"off: {fault}",
        "loader": "on",
    }


def test_taps_can_be_removed_by_two_threads_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class ReleasedMeanwhile(Tap):
        name = "slow"

        def remove(self) -> str:
            taps.release()  # as the thread that detached first
            return "left"

    class Fast(Tap):
        name = "fast"

    monkeypatch.setattr(torch_taps, "TAPS", (Fast, ReleasedMeanwhile))
    context = made()
    context.sampling = Sampling()
    taps = torch_taps.TorchTaps(context)
    assert taps.since_ns("fast") is None
    assert taps.remove() == ["left"]
    assert (taps.states(), taps.since_ns("fast"), context.taps) == ({}, None, {})


@pytest.mark.parametrize("fails", ["__init__", "install"])
def test_taps_leave_torch_and_no_cycle_if_one_of_them_cannot_begin(monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    log: list[str] = []

    class Known(Tap):
        name = "known"

        def install(self) -> None:
            log.append("in")

        def remove(self) -> None:
            log.append("out")

    class Unknown(Tap):
        name = "unknown"

    def raises(self: Tap, *_: Any) -> None:
        raise ImportError("not this torch")

    setattr(Unknown, fails, raises)
    monkeypatch.setattr(torch_taps, "TAPS", (Known, Unknown))
    context = made()
    context.sampling = Sampling()
    with pytest.raises(ImportError):
        torch_taps.TorchTaps(context)
    assert context.taps == {} and log == (["out"] if fails == "__init__" else ["in", "out"])


def test_the_hook_of_a_mark_does_not_hold_the_devices_clocks() -> None:
    """The job may keep a graph, and with it the hooks, for longer than the agent lives."""
    clocks: Any = SimpleNamespace(on=[], of_serial=lambda serial: None, report_fault=lambda error: None)
    hook: Any = marks_on(clocks, SimpleNamespace(append=None), lambda serial, kind: id)(7, 1)  # type: ignore[arg-type]
    assert all(cell.cell_contents is not clocks for cell in hook.__closure__)


def test_a_fault_after_the_end_switches_nothing_off() -> None:
    loader = Recorded("loader")
    context = made(loader=loader)
    report = context.reporter("loader")
    context.taps.clear()
    report(KeyError(1))
    assert context.faults == {"loader": "loader: KeyError(1)"} and loader.switched == []


def test_a_tap_that_depends_on_no_fault_only_keeps_its_own() -> None:
    optimizer = Recorded()
    context = made(optimizer=optimizer)
    context.reporter("optimizer")(ValueError("once"))
    assert context.faults == {"optimizer": "optimizer: ValueError('once')"} and optimizer.switched == []


def test_every_tap_has_a_column_of_its_own() -> None:
    names = [tap.name for tap in TAPS]
    assert len(set(names)) == len(names) and set(names) <= {column.name for column in COLUMNS}


def test_a_tap_is_switched_off_only_by_taps_that_there_are() -> None:
    names = {tap.name for tap in TAPS}
    assert all(names.issuperset(tap.off_after) for tap in TAPS)
