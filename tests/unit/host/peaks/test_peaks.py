"""Peaks: those of data sheets, those that were measured and kept, and when they are not measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from probe.errors import UsageError
from probe.host.nvml import Device, Nvml
from probe.host.peaks import known, measurement
from probe.host.peaks.data_sheets import SHEETS
from probe.host.peaks.known import Peak, cpu_name

CPU = "AMD EPYC, 2 threads"
MEASURED = Peak({"float32": 1e11}, 1e10, "probe doctor --peak, 2026-11-26, torch 2.13.0, probe 0.1.0")


@pytest.fixture(autouse=True)
def state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "probe" / "peaks.json"


@pytest.mark.parametrize("name", SHEETS)
def test_a_sheet_has_plausible_figures(name: str) -> None:
    """Narrower types are no slower, the ridge lies where that of accelerators does, and a source is named."""
    peak = known.peaks()[name]
    order = [peak.flops_s[dtype] for dtype in ("float64", "float32", "tf32", "float16") if dtype in peak.flops_s]
    assert order == sorted(order) and peak.source.startswith("NVIDIA ")
    assert 50 < peak.flops_s["float16"] / peak.bytes_s < 500


def test_what_was_measured_is_kept_and_counts_more_than_a_sheet(state: Path) -> None:
    known.keep({CPU: MEASURED})
    known.keep({"NVIDIA L4": MEASURED})
    assert known.peaks()[CPU] == known.peaks()["NVIDIA L4"] == MEASURED
    assert known.peaks()["NVIDIA L40S"].source == "NVIDIA L40S data sheet"


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": 1}', '{"a": {"flops_s": {"float32": "x"}, "bytes_s": 1}}'])
def test_a_file_that_is_none_of_ours_is_as_good_as_none(state: Path, text: str) -> None:
    state.parent.mkdir()
    state.write_text(text)
    assert known.measured() == {} and len(known.peaks()) == len(SHEETS)


def test_a_cpu_is_known_with_its_threads() -> None:
    assert cpu_name("AMD EPYC", 2) == CPU and cpu_name("AMD EPYC", 1) == "AMD EPYC, 1 thread"


def test_a_busy_machine_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="its cores are 37 % busy") as refused:
        measurement.measure(busy_pct=37.2)
    assert refused.value.code == "not-idle"
    device = Device("NVIDIA L4", None, None, None, (4242, 4243))
    monkeypatch.setattr(measurement, "read_nvml", lambda: Nvml("550", (device,)))
    with pytest.raises(UsageError, match="processes have 2 contexts on its devices"):
        measurement.measure(busy_pct=0.0)


@pytest.mark.slow
def test_a_machine_is_measured_in_a_process_with_so_many_threads() -> None:
    pytest.importorskip("torch")
    ((name, peak),) = measurement.measure(1, seconds=0.01, busy_pct=0.0).items()
    assert name.endswith(", 1 thread") and {"float64", "float32", "bfloat16"} <= peak.flops_s.keys()
    assert all(1e7 < each < 1e14 for each in peak.flops_s.values()) and 1e8 < peak.bytes_s < 1e13
    assert peak.source.startswith("probe doctor --peak, 2") and "torch 2." in peak.source


def test_without_torch_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurement, "find_spec", lambda name: None)
    with pytest.raises(UsageError) as refused:
        measurement.measure()
    assert refused.value.code == "needs-package"
