"""What dynamo has compiled, read from its own records, as versions of torch keep them.  No job is compiled here."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from probe.agent.samplers import compilations
from probe.agent.samplers.compilations import Compilations
from probe.agent.storage.log import Log
from probe.agent.storage.rows import Stream
from probe.snapshot.log import Log as ReadLog
from probe.streams import SAMPLES, STREAMS


class Sampled:
    """The sampler over played records, and what it wrote."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.records: deque[Any] = deque(maxlen=4)
        patch.setitem(sys.modules, "torch._dynamo.utils", SimpleNamespace(_compilation_metrics=self.records))  # type: ignore[arg-type]
        self.samples, self.log = Stream("test", STREAMS[SAMPLES], retention_bytes=1), Log()
        self.sampler = Compilations(self.samples, self.log, None)

    def close(self) -> None:
        self.sampler.close()
        self.samples.close()
        self.log.close()

    def told(self) -> list[dict[str, Any]]:
        """All that it has written by now."""
        self.sampler.sample()
        self.log.write()
        read = ReadLog()
        read.feed(bytes(self.log.buffer[8 : self.log.committed]))
        return [read.compilations[id] for id in sorted(read.compilations)]


@pytest.fixture
def sampled(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sampled]:
    made = Sampled(monkeypatch)
    yield made
    made.close()


def record(compile_id: str = "0/0", start_us: int = 1_000_000, **fields: Any) -> SimpleNamespace:
    known = {"co_name": "f", "co_filename": "/a.py", "co_firstlineno": 7, "is_forward": True, "fail_type": None}
    times = {"start_time_us": start_us, "duration_us": 250_000, "recompile_reason": None}
    return SimpleNamespace(compile_id=compile_id, **{**known, **times, **fields})


def test_a_compilation_is_told_once_with_its_times_on_the_monotonic_clock(
    sampled: Sampled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compilations, "time_ns", lambda: 1_700_000_000_000_000_000)
    monkeypatch.setattr(compilations, "perf_counter_ns", lambda: 60_000_000_000)
    sampled.records.append(record(start_us=1_699_999_999_000_000))
    (one,) = sampled.told()
    assert (one["start_ns"], one["duration_ns"]) == (59_000_000_000, 250_000_000)
    assert (one["function"], one["file"], one["line"]) == ("f", "/a.py", 7)
    assert (one["reason"], one["recompile"], one["backward"], one["failed"]) == (None, False, False, False)
    assert len(sampled.told()) == 1
    sampled.records.extend([record("0/1"), record("0/1", is_forward=False)])
    assert [each["backward"] for each in sampled.told()] == [False, False, True]


@pytest.mark.parametrize(
    ("compile_id", "reason", "again", "told"),
    [
        ("0/0", None, False, None),
        ("3/1_1", None, True, None),
        ("3/0_2", None, False, None),
        ("[2/4]", None, True, None),
        ("!0/0/0", None, False, None),
        ("None", None, None, None),
        ("0/0", "0/0: n == 2       # def f(x)\nUser stack", True, "0/0: n == 2 # def f(x)"),
        ("0/1", "x" * 1000, True, "x" * 300),
    ],
)
def test_why_and_whether_it_was_compiled_again(
    sampled: Sampled, compile_id: str, reason: str | None, again: bool | None, told: str | None
) -> None:
    sampled.records.append(record(compile_id, recompile_reason=reason))
    (one,) = sampled.told()
    assert (one["recompile"], one["reason"]) == (again, told)


def test_records_that_have_been_pushed_out_are_not_told_twice(
    sampled: Sampled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compilations, "time_ns", lambda: 1_700_000_000_000_000_000)
    monkeypatch.setattr(compilations, "perf_counter_ns", lambda: 60_000_000_000)
    for first in range(0, 30, 3):
        sampled.records.extend(record(f"0/{number}", start_us=number) for number in range(first, first + 3))
        told = sampled.told()
    assert [each["start_ns"] - told[0]["start_ns"] for each in told][:2] == [0, 1000]
    assert len(told) == 30


def test_older_torch_has_other_fields(sampled: Sampled) -> None:
    old = SimpleNamespace(compile_id="0/1", co_name="f", start_time=time.time(), entire_frame_compile_time_s=0.5)
    sampled.records.extend([old, SimpleNamespace(compile_id="0/2", start_time=None), SimpleNamespace()])
    (one,) = sampled.told()
    assert (one["function"], one["file"], one["duration_ns"], one["recompile"]) == ("f", None, 500_000_000, True)


def test_a_job_that_has_not_imported_dynamo_has_none(sampled: Sampled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch._dynamo.utils")
    assert sampled.told() == [] and sampled.sampler.state == "on"


def test_a_job_that_compiles_for_ever_does_not_fill_the_log(sampled: Sampled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probe.agent.samplers.compilations._MOST", 3)
    sampled.records.extend(record(f"0/{number}", start_us=number) for number in range(4))
    assert len(sampled.told()) == 3 and sampled.sampler.state.startswith("off: 3 compilations")
