"""What the modules of a real job cost, as computed by hand, and what bounds them by peaks that are given by hand."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

import probe as library
from probe.connection import Connection
from probe.host.peaks import known
from probe.host.peaks.known import Peak
from probe.settings import state_folder
from target import Probe, Start

pytest.importorskip("torch")

DENSE, THIN, CONV = 2 * 256**3, 2 * 512**2, 2 * (2 * 8 * 8) * 8 * 4 * 3 * 3
PAIRS = 2 * 4 * 32 * 32 * 16  # of a query and a key, in each head
FLOPS = {
    "dense": (DENSE, 2 * DENSE),  # a backward makes gradients of weights and of what has some itself
    "thin": (THIN, THIN),
    "conv": (CONV, CONV),
    "attention": (2 * 2 * PAIRS, 5 * 2 * PAIRS),
    "table": (0, 0),
    "norm": (0, 0),
}
RIDGE = Peak({"float32": 1e6}, 1e5, "by hand")  # far below any machine's, so that a busy one is near enough, too
Row = dict[str, Any]
Costs = dict[tuple[str, str], Row]


@pytest.fixture(scope="module")
def job(start_once: Start, probe: Probe, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        target = start_once("costly.py")
        probe("attach", target.pid)
        with library.connect(str(target.pid)) as connection:
            connection.query("SELECT 1")  # its thread stays until it is closed
            yield connection


def captured(job: Connection, shapes: bool) -> Costs:
    """A row of each module and stage of a step."""
    (taken,) = job.capture(1, shapes=shapes)
    return of_step(job, taken.first_step)


def of_step(job: Connection, step: int) -> Costs:
    result = job.query(f"FROM python.module_cost WHERE step = {step} AND module IS NOT NULL", open_steps=True)
    return {(row["module"], row["stage"]): row for row in result.to_pylist()}


@pytest.fixture(scope="module")
def costs(job: Connection) -> Costs:
    return captured(job, shapes=True)


def test_without_shapes_costs_rates_and_bounds_are_not_known(job: Connection) -> None:
    found = captured(job, shapes=False)
    assert {"dense", "thin", "conv", "attention", "table", "norm", "SGD"} <= {module for module, _ in found}
    for row in found.values():
        assert [row[name] for name in ("flops", "bytes", "flops_s", "memory_gbps", "peak_share", "bound")] == [None] * 6
        assert row["duration"] > 0 and row["known_pct"] == 0 and row["device_duration"] is None


@pytest.mark.parametrize("module", FLOPS)
def test_flops_are_those_computed_by_hand(costs: Costs, module: str) -> None:
    assert (costs[module, "forward"]["flops"], costs[module, "backward"]["flops"]) == FLOPS[module]


def test_bytes_are_those_computed_by_hand(costs: Costs) -> None:
    assert costs["table", "forward"]["bytes"] == 4 * 128 * 64 * 2 + 8 * 128
    assert costs["norm", "forward"]["bytes"] == 4 * (2 * 256 * 256 + 2 * 256 + 2 * 256)
    assert costs["dense", "forward"]["bytes"] == 4 * (256 + 3 * 256 * 256)


def test_sums_are_those_of_the_operators(job: Connection, costs: Costs) -> None:
    step = costs["dense", "forward"]["step"]
    sums = "SUM(flops) AS flops, SUM(bytes) AS bytes, SUM(duration) AS duration"
    of_operators = f"SELECT {sums}, COUNT(*) AS n FROM python.op_trace WHERE step = {step} AND NOT annotation"
    of_modules = f"SELECT {sums}, SUM(operators) AS n FROM python.module_cost WHERE step = {step}"
    ((one,), (other,)) = (job.query(sql, open_steps=True).to_pylist() for sql in (of_operators, of_modules))
    assert one == {**other, "duration": pytest.approx(other["duration"])} and one["flops"] > 3 * DENSE


def test_without_a_peak_shares_and_bounds_are_not_known(costs: Costs) -> None:
    for row in costs.values():
        assert (row["peak_share"], row["bound"], row["peak_source"]) == (None, None, None)
    assert costs["dense", "forward"]["flops_s"] > 0 and costs["dense", "forward"]["known_pct"] > 50
    assert costs["dense", "forward"]["processor"].endswith(", 1 thread")


def test_a_module_is_on_the_side_of_the_ridge_that_its_intensity_tells(job: Connection, costs: Costs) -> None:
    known.keep({costs["dense", "forward"]["processor"]: RIDGE})
    found = of_step(job, costs["dense", "forward"]["step"])
    bounds = {module: found[module, "forward"]["bound"] for module in ("dense", "thin", "table", "norm", "conv")}
    assert bounds.pop("dense") == "compute"  # 42 operations a byte
    assert set(bounds.values()) == {"memory"}, bounds  # at most 6; the ridge is at 10
    dense = found["dense", "forward"]
    assert dense["peak_share"] == pytest.approx(dense["flops_s"] / RIDGE.flops_s["float32"])
    assert dense["peak_source"] == "by hand"


def test_far_below_both_peaks_a_module_is_bound_by_overhead(job: Connection, costs: Costs) -> None:
    known.keep({costs["dense", "forward"]["processor"]: Peak({"float32": 1e18}, 1e15, "by hand")})
    found = of_step(job, costs["dense", "forward"]["step"])
    assert found["dense", "forward"]["bound"] == found["norm", "forward"]["bound"] == "overhead"


def test_the_command_shows_modules_and_names_the_peak_that_is_missing(job: Connection, probe: Probe) -> None:
    (state_folder() / "peaks.json").unlink(missing_ok=True)
    told = probe(job.agents[0].pid, "capture", "--steps", "1", "--shapes")
    assert "aten::addmm" in told.stdout and re.search(r"NULL +forward +dense\n", told.stdout), told.stdout
    assert re.search(r"No peak is known of .+, 1 thread, .* idle: probe doctor --peak --threads 1\n", told.stderr)
