"""The machine tables out of raw samples: levels, and rates over the time that really passed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fake_agent import FakeAgent

from probe.connection import Connection
from probe.streams import (
    ALLOCATORS_END,
    CORE_WAIT_NS,
    CPU_NS,
    DEVICE_ALLOCATED,
    EVAL,
    GPU_MEMORY_USED_BYTES,
    GPU_NVLINK_RX_KB,
    GPU_PCIE_TX_BYTES,
    GPU_THROTTLE_REASONS,
    GPU_UTIL_PCT,
    HOST_IDLE_TICKS,
    HOST_MEMORY_AVAILABLE_KB,
    HOST_MEMORY_KB,
    HOST_TICKS,
    INVOLUNTARY_SWITCHES,
    LOG_DEVICE,
    LOG_EVAL,
    MEMORY,
    READ_BYTES,
    RSS_BYTES,
    SAMPLES,
    SPANS,
    THREADS,
    VOLUNTARY_SWITCHES,
)
from probe.tables.host.gpu_trace import REASONS

Make = Callable[..., FakeAgent]
Connect = Callable[..., Connection]
SECOND = 1_000_000_000
MB = 1 << 20


@pytest.fixture
def read(agent: Make, connected: Connect) -> Callable[..., Any]:
    """The values of columns of the machine tables, row by row, after samples that a function makes."""

    def read(
        make: Callable[[FakeAgent], None], *columns: str, table: str = "process", order: str = "start_ns"
    ) -> list[Any]:
        one = agent()
        make(one)
        sql = f"SELECT {', '.join(columns)} FROM host.{table}_trace ORDER BY {order}"
        found = [tuple(row.values()) for row in connected(one).query(sql).to_pylist()]
        return [row[0] for row in found] if len(columns) == 1 else found

    return read


def test_the_first_second_has_levels_and_no_rates(read: Callable[..., Any]) -> None:
    def make(one: FakeAgent) -> None:
        one.sample(SECOND, (CPU_NS, 5), (RSS_BYTES, 3 * MB), (THREADS, 7))

    assert read(make, "cpu_pct", "rss_mb", "threads") == [(None, 3.0, 7)]


def test_a_rate_is_over_the_true_interval_after_a_thread_was_starved(read: Callable[..., Any]) -> None:
    def make(one: FakeAgent) -> None:
        for at, cpu in ((1.0, 0.0), (2.0, 0.5), (6.5, 5.0)):
            one.sample(int(at * SECOND), (CPU_NS, int(cpu * SECOND)))

    assert read(make, "cpu_pct") == [None, 50.0, 100.0]


def test_a_reading_that_is_missing_is_null_and_the_next_rate_spans_the_gap(read: Callable[..., Any]) -> None:
    def make(one: FakeAgent) -> None:
        one.sample(1 * SECOND, (CPU_NS, 0), (READ_BYTES, 10 * MB))
        one.sample(2 * SECOND, (CPU_NS, SECOND // 4))
        one.sample(3 * SECOND, (CPU_NS, SECOND // 4), (READ_BYTES, 30 * MB))

    assert read(make, "cpu_pct", "read_mb_s", "rss_mb") == [(None, None, None), (25.0, None, None), (0.0, 10.0, None)]


def test_a_counter_that_fell_gives_no_rate_and_the_next_one_counts_from_there(read: Callable[..., Any]) -> None:
    def make(one: FakeAgent) -> None:
        for second, value in enumerate((100 * MB, 104 * MB, 1 * MB, 3 * MB), 1):
            one.sample(second * SECOND, (READ_BYTES, value))

    assert read(make, "read_mb_s") == [None, 4.0, None, 2.0]


def test_waiting_for_a_core_is_a_share_of_the_time(read: Callable[..., Any]) -> None:
    def make(one: FakeAgent) -> None:
        one.sample(1 * SECOND, (CORE_WAIT_NS, 5))
        one.sample(3 * SECOND, (CORE_WAIT_NS, 5 + SECOND // 2))

    assert read(make, "core_wait_pct") == [None, 25.0]


def test_voluntary_and_involuntary_switches_are_added(read: Callable[..., Any]) -> None:
    def make(one: FakeAgent) -> None:
        one.sample(1 * SECOND, (VOLUNTARY_SWITCHES, 10), (INVOLUNTARY_SWITCHES, 1))
        one.sample(3 * SECOND, (VOLUNTARY_SWITCHES, 50), (INVOLUNTARY_SWITCHES, 5))

    assert read(make, "context_switches_s") == [None, 22.0]


def test_the_host_is_busy_when_its_cores_are_not_idle(read: Callable[..., Any]) -> None:
    def make(one: FakeAgent) -> None:
        one.sample(1 * SECOND, (HOST_TICKS, 1000), (HOST_IDLE_TICKS, 900))
        one.sample(2 * SECOND, (HOST_TICKS, 1200), (HOST_IDLE_TICKS, 950))
        one.sample(3 * SECOND, (HOST_TICKS, 1200), (HOST_IDLE_TICKS, 950))

    assert read(make, "host_cpu_pct") == [None, 75.0, None]


def test_memory_that_is_not_available_counts_as_used(read: Callable[..., Any]) -> None:
    assert read(
        lambda one: one.sample(SECOND, (HOST_MEMORY_KB, 4000), (HOST_MEMORY_AVAILABLE_KB, 1000)), "host_memory_used_pct"
    ) == [75.0]


def test_samples_are_shown_without_steps_and_in_the_open_step(read: Callable[..., Any]) -> None:
    def make(one: FakeAgent) -> None:
        one.sample(SECOND // 2, (THREADS, 1))
        one.boundary(SECOND)
        one.sample(SECOND + 1, (THREADS, 2))

    assert read(make, "step", "threads") == [(0, 1), (1, 2)]


def test_a_sample_taken_during_an_eval_is_marked(read: Callable[..., Any]) -> None:
    def make(one: FakeAgent) -> None:
        one.put(LOG_EVAL, 9, by="me", code="1", where="now", ranks=None)
        one.streams[SPANS].append(2 * SECOND - 5, 2 * SECOND + 5, 9, 1, EVAL)
        for second in (1, 2, 3):
            one.sample(second * SECOND, (THREADS, 1))

    assert read(make, "in_eval") == [False, True, False]


def test_a_partly_overwritten_second_is_left_out(read: Callable[..., Any]) -> None:
    seconds = []

    def make(one: FakeAgent) -> None:
        capacity = one.streams[SAMPLES].capacity
        seconds.append(capacity // 2 + 10)
        for second in range(seconds[0]):
            one.sample(second * SECOND, (CPU_NS, second * SECOND // 2), (THREADS, 1))
        one.sample(seconds[0] * SECOND, (THREADS, 1))  # one row more, so that a pair is torn

    rows = read(make, "start_ns", "cpu_pct", "threads")
    assert rows[0] == (11 * SECOND, None, 1)
    assert all(row[1:] == (50.0, 1) for row in rows[1:-1]) and rows[-1][1:] == (None, 1)


def devices(one: FakeAgent, *names: str) -> None:
    for index, name in enumerate(names):
        one.put(LOG_DEVICE, 100 + index, index=index, uuid=f"GPU-{index}", name=name)


def test_each_device_has_a_row_per_second_under_its_number_in_the_process(read: Callable[..., Any]) -> None:
    def make(one: FakeAgent) -> None:
        devices(one, "H200", "A100")
        for second in (1, 2):
            for index in (0, 1):
                used = (GPU_MEMORY_USED_BYTES, second * MB)
                one.sample(second * SECOND + index, (GPU_UTIL_PCT, 10 * index + second), used, source=100 + index)

    columns = "device", "uuid", "name", "gpu_util_pct", "memory_used_mb", "power_w"
    assert read(make, *columns, table="gpu", order="device, start_ns") == [
        ("cuda:0", "GPU-0", "H200", 1.0, 1.0, None),
        ("cuda:0", "GPU-0", "H200", 2.0, 2.0, None),
        ("cuda:1", "GPU-1", "A100", 11.0, 1.0, None),
        ("cuda:1", "GPU-1", "A100", 12.0, 2.0, None),
    ]


def test_link_rates_are_per_device(read: Callable[..., Any]) -> None:
    def make(one: FakeAgent) -> None:
        devices(one, "H200", "H200")
        for second in (1, 2):
            sent, received = (GPU_PCIE_TX_BYTES, second * 3 * MB), (GPU_NVLINK_RX_KB, second * 5 * 1024)
            one.sample(second * SECOND, sent, received, source=100)
            one.sample(second * SECOND, (GPU_PCIE_TX_BYTES, 0), source=101)

    found = read(make, "pcie_tx_mb_s", "nvlink_rx_mb_s", table="gpu", order="device, start_ns")
    assert found == [(None, None), (3.0, 5.0), (None, None), (0.0, None)]


def test_throttle_reasons_are_shown_by_name(read: Callable[..., Any]) -> None:
    def make(one: FakeAgent) -> None:
        devices(one, "H200")
        one.sample(1 * SECOND, (GPU_THROTTLE_REASONS, 0x44), source=100)
        one.sample(2 * SECOND, (GPU_THROTTLE_REASONS, 0), source=100)
        one.sample(3 * SECOND, (GPU_UTIL_PCT, 0), source=100)

    assert read(make, "throttle_reasons", table="gpu") == [["sw_power_cap", "hw_thermal_slowdown"], [], None]


def test_throttle_reasons_match_nvml() -> None:
    pynvml = pytest.importorskip("pynvml")
    for bit, name in REASONS.items():
        camel = name.title().replace("_", "")
        assert getattr(pynvml, f"nvmlClocksThrottleReason{camel}", bit) == bit, name
    assert sum(hasattr(pynvml, "nvmlClocksThrottleReason" + n.title().replace("_", "")) for n in REASONS.values()) == 9


def test_queries_for_samples_have_no_note_about_missing_steps(agent: Make, connected: Connect) -> None:
    one = agent()
    one.boundary(SECOND)
    connection = connected(one)
    notes = connection.query("SELECT * FROM python.torch_trace").notes
    assert [note.text.partition(" (")[0] for note in notes] == ["rank 0: no whole step since the attach yet"]
    assert connection.query("SELECT * FROM host.process_trace").notes == ()


def test_an_empty_table_of_devices_comes_with_the_reason(agent: Make, connected: Connect) -> None:
    one = agent(taps={"process": "on", "gpu": "off: no NVML library"})
    one.sample(SECOND, (THREADS, 1))
    connection = connected(one)
    result = connection.query("SELECT * FROM host.gpu_trace")
    assert result.num_rows == 0 and list(map(str, result.notes)) == ["rank 0: gpu is off: no NVML library"]
    result = connection.query("SELECT * FROM host.process_trace")
    assert result.num_rows == 1 and result.notes == ()
    assert connection.query("SELECT process_tap, gpu_tap FROM probe.agents").to_pylist() == [
        {"process_tap": "on", "gpu_tap": "off: no NVML library"}
    ]


def test_only_what_allocators_say_is_of_a_device(agent: Make, connected: Connect) -> None:
    """The next number below theirs is that of another sampler."""
    one = agent()
    for source in (MEMORY - 1, ALLOCATORS_END, ALLOCATORS_END - 1):
        one.sample(SECOND, (DEVICE_ALLOCATED, MB), source=source)
    found = connected(one).query("SELECT device FROM python.memory_trace WHERE allocated_mb IS NOT NULL").to_pylist()
    assert [row["device"] for row in found] == ["cuda:0", f"cuda:{MEMORY - 1 - ALLOCATORS_END}"]
