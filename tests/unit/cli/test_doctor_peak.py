"""`probe doctor --peak`: what was measured is shown and kept."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from probe.cli.entry import run
from probe.host.peaks import known, measurement
from probe.host.peaks.known import Peak

MEASURED = {"AMD EPYC, 8 threads": Peak({"float32": 1e12, "bfloat16": 4e12}, 1e11, "probe doctor --peak, 2026-11-26")}


def test_measured_peaks_are_shown_with_their_ridge_and_kept(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    asked: list[int] = []
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(measurement, "measure", lambda threads: asked.append(threads) or MEASURED)
    assert run(["doctor", "--peak", "--threads", "8", "--format", "csv"]) == 0
    out, err = capfd.readouterr()
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [(row["dtype"], float(row["gflops_s"]), float(row["ridge_flops_a_byte"])) for row in rows] == [
        ("float32", 1000, 10),
        ("bfloat16", 4000, 40),
    ]
    assert asked == [8] and known.measured() == MEASURED and f"kept in {tmp_path}/probe/peaks.json" in err
