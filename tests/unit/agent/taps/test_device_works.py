"""When operations on a device are said to end, on a stand-in for its events; on torch's own: tests/played."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from probe.agent.storage.rows import Stream
from probe.agent.taps.collectives import device_works
from probe.agent.taps.collectives.device_works import DeviceWorks, Row
from probe.agent.taps.collectives.works import Works
from probe.streams import CAPTURED, COLLECTIVES, END_UNKNOWN, QUEUED, STREAMS

SLOTS = STREAMS[COLLECTIVES]
MS = 1_000_000


class Device:
    """A played clock and the Cuda of the tap: an event is reached once the device has come to its moment."""

    def __init__(self) -> None:
        self.stream_ms, self.reached_ms = 0.0, 1e9  # where the current stream will be; how far the device has come
        self.capturing, self.queries = False, 0
        self.index = 0  # of the device whose stream was asked for last

    def event(self) -> Event:
        return Event(self)

    def stream(self, index: int) -> Device:
        self.index = index
        return self

    def is_capturing(self) -> bool:
        return self.capturing

    def enter(self, index: int) -> None: ...

    def reached(self, event: Event) -> bool:
        self.queries += 1
        return event.at_ms <= self.reached_ms

    def elapsed_ns(self, first: Event, last: Event) -> int:
        return round((last.at_ms - first.at_ms) * MS)

    def current_device(self) -> int:
        return 0

    def aside(self, query: Any) -> Any:
        return query()


class Event:
    def __init__(self, device: Device) -> None:
        self._device, self.at_ms = device, 0.0
        self._index: int | None = None

    def record(self, stream: Device) -> None:
        assert not self._device.capturing
        assert self._index in (None, stream.index)  # as torch checks
        self.at_ms, self._index = stream.stream_ms, stream.index


class Work:
    def __init__(self, complete: bool = False, took_ms: float = 0.0) -> None:
        self.complete, self.took_ms = complete, took_ms

    def is_completed(self) -> bool:
        return self.complete

    def _get_duration(self) -> float:
        return self.took_ms


class Played:
    def __init__(self, device: Device) -> None:
        self.device = device
        self.stream = Stream(COLLECTIVES, SLOTS, 1 << 16)
        self.works = DeviceWorks(Works(self.stream.buffer))

    def row(self) -> Row:
        return self.stream.append(*[1000 if slot == "start_ns" else 0 for slot in SLOTS[:-1]])[1:]

    def issue(self, work: Work | None, in_cpp: bool = False, pointer: int = 0, index: int = 0) -> Row:
        row = self.row()
        self.works.issued(self.works.begin(index, row, in_cpp, pointer), row, work)
        return row

    def slot(self, row: Row, name: str) -> int:
        at = row[0] + 8 * SLOTS.index(name)
        return int.from_bytes(self.stream.buffer[at : at + 8], "little", signed=True)

    def is_queued(self, row: Row) -> bool:
        return bool(self.slot(row, "flags") & QUEUED)

    def took_ms(self, row: Row) -> float | str:
        """How long the row says that it took, or what else it says."""
        flags, done = self.slot(row, "flags"), self.slot(row, "done_ns")
        if flags:
            assert done > 0
            return {CAPTURED: "captured", END_UNKNOWN: "unknown"}[flags]
        return (done - 1000) / MS if done else "in flight"


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Iterator[Played]:
    device = Device()
    monkeypatch.setattr(device_works, "Cuda", lambda: device)
    played = Played(device)
    yield played
    played.works.forget()
    played.stream.close()


def test_one_without_a_work_ends_where_the_current_stream_is_behind_it(played: Played) -> None:
    row = played.row()
    operation = played.works.begin(0, row, False, 0)
    played.device.stream_ms, played.device.reached_ms = 3.0, 2.0
    played.works.issued(operation, row, None)
    played.works.resolve()
    assert played.took_ms(row) == "in flight"
    played.device.reached_ms = 3.0
    played.works.resolve()
    assert played.took_ms(row) == 3.0


@pytest.mark.parametrize(
    ("complete", "stood_ms", "told"),
    [(False, 5.0, 7.0), (False, 0.0, "unknown"), (True, 0.0, 1.5), (True, 5.0, 1.5)],
)
@pytest.mark.parametrize("functional", [False, True])
def test_one_that_is_waited_for_ends_with_the_wait_if_a_stream_stood_still_in_it(
    played: Played, complete: bool, stood_ms: float, told: float | str, functional: bool
) -> None:
    work = Work(complete, took_ms=1.5)
    row = played.issue(work, in_cpp=functional, pointer=64)
    played.device.stream_ms = 2.0  # it computes, and waits then
    waits = played.works.before_wait_for(64) if functional else played.works.before_wait(work)
    played.device.stream_ms += stood_ms
    if waits is not None:
        played.works.behind_wait(waits)
    played.works.resolve()
    assert played.took_ms(row) == told
    assert not played.works.kept


@pytest.mark.parametrize("work", [None, Work()])
def test_the_oldest_in_flight_tells_whether_the_device_has_come_to_it(played: Played, work: Work | None) -> None:
    played.device.stream_ms, played.device.reached_ms = 2.0, 1.0  # a kernel in front of it goes on
    row = played.row()
    operation = played.works.begin(0, row, work is not None, 0)
    played.device.stream_ms = 3.0
    played.works.issued(operation, row, work)
    played.works.resolve()
    assert played.slot(row, "done_ns") == 0 and played.is_queued(row)
    played.device.reached_ms = 2.5
    played.works.resolve()
    assert played.slot(row, "done_ns") == 0 and not played.is_queued(row)


def test_a_work_that_the_job_has_dropped_is_not_kept(played: Played) -> None:
    work = Work()
    gone, row = weakref.ref(work), played.issue(work)
    played.issue(Work(), in_cpp=True)
    assert played.took_ms(row) == "in flight" and len(played.works.kept) == 2
    del work
    played.issue(None)
    gc.collect()
    assert gone() is None and played.took_ms(row) == "unknown" and len(played.works.kept) == 1


def test_a_work_is_let_go_when_a_stream_waits_for_it(played: Played) -> None:
    work = Work()
    gone, _ = weakref.ref(work), played.issue(work)
    played.works.before_wait(work)
    del work
    assert gone() is None


def test_one_that_c_waits_for_ends_when_its_work_is_complete(played: Played) -> None:
    row = played.issue(work := Work(took_ms=4.0), in_cpp=True)
    played.works.resolve()
    assert played.took_ms(row) == "in flight"
    work.complete = True
    played.works.resolve()
    assert played.took_ms(row) == 4.0 and not played.works.kept


def test_the_agent_asks_no_work_before_the_device_has_come_to_it(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch holds the GIL while it asks, and the driver may let it wait while another thread waits for the device."""
    asked = list[Work]()
    monkeypatch.setattr(Work, "is_completed", lambda work: bool(asked.append(work)) or work.complete)
    played.device.stream_ms, played.device.reached_ms = 5.0, 4.0
    row = played.issue(kept := Work(), in_cpp=True)
    asked.clear()
    played.works.resolve()
    assert asked == []
    played.device.reached_ms = 5.0
    kept.complete, kept.took_ms = True, 2.5
    played.works.resolve()
    assert (asked, played.slot(row, "done_ns")) == ([kept], 1000 + 2.5 * MS)


def test_those_that_c_waits_for_end_in_order_when_the_next_one_is_issued(played: Played) -> None:
    works = [Work(took_ms=number) for number in (1.0, 2.0, 3.0)]
    rows = [played.issue(each, in_cpp=True) for each in works]
    works[0].complete = works[2].complete = True
    later = played.issue(Work(), in_cpp=True)
    assert [played.took_ms(row) for row in (*rows, later)] == [1.0, "in flight", "in flight", "in flight"]
    works[1].complete = True
    played.issue(Work(), in_cpp=True)
    assert [played.took_ms(row) for row in (*rows, later)] == [1.0, 2.0, 3.0, "in flight"]
    assert len(played.works.kept) == 2


def test_an_aborted_work_has_an_end_that_is_unknown(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(work: Work) -> float:
        raise RuntimeError("not ready")

    monkeypatch.setattr(Work, "_get_duration", raises)
    row = played.issue(Work(complete=True), in_cpp=True)
    played.works.resolve()
    assert played.took_ms(row) == "unknown" and not played.works.kept


def test_a_work_that_was_dropped_last_is_let_go_by_the_agent(played: Played) -> None:
    row = played.issue(Work())
    played.works.resolve()
    assert played.took_ms(row) == "unknown" and not played.works.kept


@pytest.mark.parametrize("work", [None, Work()])
def test_coalesced_operations_end_together(played: Played, work: Work | None) -> None:
    played.works.coalesce()
    rows = [played.issue(each) for each in (None, Work(complete=True, took_ms=-0.1))]
    assert not played.works.kept
    played.device.stream_ms = 6.0
    played.works.coalesced(work)
    if work is not None:
        waits = played.works.before_wait(work)
        played.device.stream_ms = 8.0
        assert waits is not None
        played.works.behind_wait(waits)
    played.works.resolve()
    assert [played.took_ms(row) for row in rows] == [8.0 if work else 6.0] * 2


def test_a_group_that_is_never_ended_is_bounded_and_its_operations_end_unknown(played: Played) -> None:
    played.works.coalesce()
    rows = [played.issue(None) for _ in range(2 * device_works._MOST)]
    assert played.took_ms(rows[-1]) == "unknown" and played.took_ms(rows[0]) == "in flight"
    played.works.coalesce()
    assert played.took_ms(rows[0]) == "unknown"


@pytest.mark.parametrize("looks", ["agent", "issue"])
def test_two_threads_that_find_one_complete_give_its_event_back_once(played: Played, looks: str) -> None:
    class Seen(Work):
        def is_completed(self) -> bool:
            if not self.complete:
                self.complete = True
                played.works.resolve()  # another thread looks at just that moment
            return True

    row = played.issue(Seen(took_ms=1.0), in_cpp=True)
    if looks == "agent":
        played.works.resolve()
    else:
        played.issue(Work(), in_cpp=True)
    stock = list(map(id, played.works._stock))
    assert played.took_ms(row) == 1.0 and len(stock) == len(set(stock))


def test_nothing_is_recorded_or_queried_in_a_capture(played: Played) -> None:
    before = played.issue(work := Work())
    played.device.capturing = True
    row = played.issue(Work())
    assert played.works.before_wait(work) is None
    assert (played.took_ms(row), played.took_ms(before)) == ("captured", "unknown")
    assert played.device.queries == 0 and not played.works.kept


def test_without_an_event_the_end_is_unknown_and_events_come_back(played: Played) -> None:
    rows = [played.issue(None) for _ in range(device_works._EVENTS)]
    assert played.took_ms(rows[-1]) == "unknown"
    for _ in range(3):
        played.works.resolve()
        assert played.took_ms(played.issue(None)) == "in flight"


def test_an_event_goes_back_to_the_device_that_recorded_it(played: Played) -> None:
    for index in (0, 1, 0, 1):
        row, dropped = played.issue(None, index=index), played.issue(Work(), index=index)
        played.works.resolve()
        assert (played.took_ms(row), played.took_ms(dropped)) == (0.0, "unknown")


def test_a_device_has_events_however_many_are_in_use_on_another_one(played: Played) -> None:
    for _ in range(device_works._EVENTS):
        played.works.begin(0, played.row(), False, 0)
    assert played.took_ms(played.issue(None)) == "unknown"
    assert played.took_ms(played.issue(None, index=1)) == "in flight"


def test_so_many_works_are_kept_and_no_more(played: Played) -> None:
    rows = [played.issue(Work(), in_cpp=True) for _ in range(2 * device_works._MOST)]
    assert len(played.works.kept) == device_works._MOST
    assert (played.took_ms(rows[0]), played.took_ms(rows[-1])) == ("unknown", "in flight")


def test_where_no_times_can_be_taken_every_end_is_unknown(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses() -> Device:
        raise LookupError("not on ROCm")

    monkeypatch.setattr(device_works, "Cuda", refuses)
    assert played.took_ms(played.issue(None)) == played.took_ms(played.issue(Work())) == "unknown"
    played.works.resolve()


def test_a_forked_child_keeps_what_it_must_not_free(played: Played) -> None:
    played.issue(Work())
    kept, *others = played.works.keep()
    assert len(kept) == 1 and others and not played.works.kept
    played.works.resolve()
