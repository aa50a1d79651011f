"""The seam of the taps: who is switched off by whose fault, and what the registry needs of each tap."""

from __future__ import annotations

from typing import Any

from probe.agent.taps.registry import TAPS
from probe.agent.taps.tap import Tap, TapContext
from probe.agent.taps.torch_taps import states_of
from probe.streams import BARE
from probe.tables.declaration import TAPS as COLUMNS


class Recorded(Tap):
    """A tap that notes how it is switched."""

    def __init__(self, *off_after: str) -> None:
        self.off_after = off_after  # type: ignore[misc]
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


def test_a_tap_that_anothers_fault_switched_off_says_so() -> None:
    device = Recorded("device", "forward", "backward")
    device.why_off = "no such device"
    taps: dict[str, Tap] = {"forward": Recorded("forward", "backward"), "device": device, "loader": Recorded("loader")}
    assert states_of(taps, {}) == {"forward": "on", "device": "off: no such device", "loader": "on"}
    fault = "backward: ValueError()"
    assert states_of(taps, {"backward": fault}) == {
        "forward": f"off: {fault}",
        "device": f"off: {fault}",
        "loader": "on",
    }


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
