"""python.module_cost out of raw operators and kernels: sums, rates, and what bounds a module on a device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_agent import FakeAgent

from probe.agent.storage.rows import Stream
from probe.connection import Connection
from probe.host.peaks.known import Peak, keep
from probe.streams import ANNOTATION, BACKWARD, KERNELS, ON_DEVICE, OPERATORS, STREAMS

Make = Callable[..., FakeAgent]
Connect = Callable[..., Connection]
GPU, CPU = "Made Up 9000", "AMD EPYC, 2 threads"
PEAK = Peak({"float32": 1e12, "bfloat16": 4e12}, 1e11, "by hand")  # 10 and 40 operations a byte


class Captured:
    """Operators in the forward of Linear, which a step has from 100,000 to 200,000 ns; times are µs of it."""

    def __init__(self, agent: FakeAgent) -> None:
        self.agent = agent
        agent.name_modules()
        for name in (OPERATORS, KERNELS):
            agent.streams[name] = stream = Stream(name, STREAMS[name], 1 << 20)
            agent.facts["streams"][name] = {"slots": list(stream.slots), "chunks": stream.chunks}
        agent.train(3, unit=1000)

    def operate(
        self, start: int, end: int, *, flops: int = -1, bytes: int = -1, name: str = "aten::mm", flags: int = 0,
        dtype: str = "float32", device_us: float = 0, cpu: str = CPU,
    ) -> None:  # fmt: skip
        name_of, begin = self.agent.log.string, 100_000
        on_device = flags & ON_DEVICE or (ON_DEVICE if device_us else 0)
        processor = name_of(GPU) if on_device else name_of(cpu) if cpu else 0
        self.agent.streams[OPERATORS].append(
            begin + 1000 * start, begin + 1000 * end, name_of(name), 0, 4242, 0, 0, 0, name_of(dtype), processor,
            flops, bytes, flags | on_device,
        )  # fmt: skip
        if device_us:
            number, ends = self.agent.streams[OPERATORS].position(), 300_000 + round(1000 * device_us)
            self.agent.streams[KERNELS].append(
                300_000, ends, 250_000, name_of("k"), name_of("kernel"), 0, 7, number, -1
            )


@pytest.fixture
def read(
    agent: Make, connected: Connect, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., dict[str, Any]]:
    """The one row of the module's forward, once `make` has captured something."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def read(make: Callable[[Captured], None], known: bool = True) -> dict[str, Any]:
        if known:
            keep({GPU: PEAK, CPU: PEAK})
        captured = Captured(agent())
        make(captured)
        where = "WHERE module = 'linear' AND stage = 'forward'"
        (row,) = connected(captured.agent).query(f"FROM python.module_cost {where}").to_pylist()
        return row  # type: ignore[no-any-return]

    return read


def test_rates_are_those_of_the_operators_with_a_known_cost(read: Callable[..., dict[str, Any]]) -> None:
    def make(one: Captured) -> None:
        one.operate(0, 30, flops=6_000_000, bytes=3000)
        one.operate(30, 40, name="aten::unknown")
        one.operate(0, 90, name="a range", flags=ANNOTATION)
        one.operate(50, 60, flops=1, bytes=1, flags=BACKWARD)  # another stage

    row = read(make)
    assert (row["operators"], row["flops"], row["bytes"]) == (2, 6_000_000, 3000)
    assert row["duration"] == pytest.approx(40e-6) and row["known_pct"] == pytest.approx(75)
    assert row["flops_s"] == pytest.approx(2e11) and row["memory_gbps"] == pytest.approx(0.1)
    assert row["processor"] == CPU and row["device_duration"] is None
    assert row["peak_share"] == pytest.approx(0.2) and row["bound"] == "compute"


def test_on_a_device_its_time_counts(read: Callable[..., dict[str, Any]]) -> None:
    def make(one: Captured) -> None:
        one.operate(0, 10, flops=0, bytes=0, name="aten::linear", flags=ON_DEVICE)
        one.operate(10, 20, flops=40_000_000, bytes=100_000, device_us=50)
        one.operate(30, 31, flops=7, bytes=7)  # on the CPU: not counted

    row = read(make)
    assert (row["processor"], row["flops"], row["known_pct"]) == (GPU, 40_000_000, 100)
    assert row["device_duration"] == pytest.approx(50e-6) and row["flops_s"] == pytest.approx(8e11)
    assert (row["peak_share"], row["bound"]) == (pytest.approx(0.8), "compute")


def test_where_kernels_were_overwritten_what_they_took_is_not_known(read: Callable[..., dict[str, Any]]) -> None:
    def others(one: Captured, begin: int) -> None:
        kernel = one.agent.log.string("k")
        for at in range(begin, begin + one.agent.streams[KERNELS].capacity):  # all that the ring keeps
            one.agent.streams[KERNELS].append(at, at + 1, at, kernel, kernel, 0, 7, 0, -1)

    def before(one: Captured) -> None:
        one.operate(0, 10, flops=40_000_000, bytes=100_000, device_us=50)
        others(one, 1_000_000)

    def after(one: Captured) -> None:
        others(one, 0)
        one.operate(0, 10, flops=40_000_000, bytes=100_000, device_us=50)

    row = read(before)
    unknown = ("device_duration", "flops_s", "memory_gbps", "known_pct", "peak_share", "bound")
    assert {row[name] for name in unknown} == {None} and (row["flops"], row["processor"]) == (40_000_000, GPU)
    assert (read(after)["device_duration"], read(after)["bound"]) == (pytest.approx(50e-6), "compute")


@pytest.mark.parametrize(("dtype", "bound"), [("float32", "compute"), ("bfloat16", "memory")])
def test_the_ridge_is_that_of_the_type(read: Callable[..., dict[str, Any]], dtype: str, bound: str) -> None:
    assert (
        read(lambda one: one.operate(0, 9, flops=20_000_000, bytes=1_000_000, dtype=dtype, device_us=40))["bound"]
        == bound
    )


def test_a_type_without_a_peak_leaves_the_bound_unknown(read: Callable[..., dict[str, Any]]) -> None:
    row = read(lambda one: one.operate(0, 9, flops=20_000_000, bytes=10, dtype="float64", device_us=40))
    assert (row["bound"], row["peak_share"]) == (None, None) and row["flops_s"] > 0


def test_where_less_than_half_of_the_time_has_a_known_cost_the_bound_is_unknown(
    read: Callable[..., dict[str, Any]],
) -> None:
    def make(one: Captured) -> None:
        one.operate(0, 40, flops=40_000_000, bytes=10)
        one.operate(40, 90, name="aten::unknown")

    row = read(make)
    assert row["bound"] is None and row["known_pct"] == pytest.approx(100 * 4 / 9)


def test_launching_bounds_where_the_host_takes_twice_as_long_as_the_device(
    read: Callable[..., dict[str, Any]],
) -> None:
    """Whether or not a cost is known; but not what may have waited for the device."""
    assert read(lambda one: one.operate(0, 80, device_us=40), known=False)["bound"] == "launch"
    assert read(lambda one: one.operate(0, 79, device_us=40), known=False)["bound"] is None
    waits = "aten::_local_scalar_dense"
    assert read(lambda one: one.operate(0, 80, device_us=40, name=waits), known=False)["bound"] is None


def test_where_it_is_not_known_what_they_ran_on_there_are_costs_but_no_rates(
    read: Callable[..., dict[str, Any]],
) -> None:
    row = read(lambda one: one.operate(0, 50, flops=1000, bytes=1000, cpu=""))
    assert (row["flops"], row["bytes"], row["operators"]) == (1000, 1000, 1)
    assert {row[name] for name in ("flops_s", "memory_gbps", "known_pct", "peak_share", "bound")} == {None}


def test_far_below_both_peaks_it_is_overhead(read: Callable[..., dict[str, Any]]) -> None:
    assert read(lambda one: one.operate(0, 50, flops=1000, bytes=1000))["bound"] == "overhead"


def test_without_a_capture_there_are_no_rows(agent: Make, connected: Connect) -> None:
    one = agent()
    one.name_modules()
    one.train(3)
    assert connected(one).query("FROM python.module_cost").num_rows == 0
