"""The faults of taps: the first of each is kept in words, and takes its tap out once."""

from __future__ import annotations

from probe.agent.taps.tap_faults import TapFaults


def test_the_first_fault_takes_its_tap_out_and_no_other() -> None:
    faults, out = TapFaults(), list[str]()
    faults.ways_out.update(forward=lambda: out.append("forward"), loader=lambda: out.append("loader"))
    report = faults.reporter("forward")
    report(ValueError("loader: a text that names another tap"))
    report(ValueError("later"))
    assert faults.by_tap == {"forward": "forward: ValueError('loader: a text that names another tap')"}
    assert out == ["forward"]


def test_a_fault_after_the_end_takes_nothing_out() -> None:
    faults, out = TapFaults(), list[str]()
    faults.ways_out.update(loader=lambda: out.append("loader"))
    report = faults.reporter("loader")
    faults.clear()
    report(KeyError(1))
    assert faults.by_tap == {"loader": "loader: KeyError(1)"} and out == []


def test_a_tap_without_a_way_out_only_keeps_its_fault() -> None:
    faults = TapFaults()
    faults.reporter("optimizer")(ValueError("once"))
    assert faults.by_tap == {"optimizer": "optimizer: ValueError('once')"}
