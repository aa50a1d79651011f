"""The ring of packed rows: the caller that claims a place owns it, and a row's number gives its place."""

from __future__ import annotations

import gc
import struct
import sys
import threading
import time
from collections.abc import Iterator
from itertools import repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probe.agent.storage.rows import Stream
from probe.streams import CHUNK_ROWS


@pytest.fixture
def stream() -> Iterator[Stream]:
    made = Stream("test", ("a", "b", "seq"), retention_bytes=1)
    yield made
    made.close()


def rows_of(stream: Stream, first: int, last: int, piece: int = 1000) -> list[tuple[int, ...]]:
    found = []
    for number, view in stream.read(first, last, piece):
        found += [(number + i, *row) for i, row in enumerate(struct.iter_unpack("<3q", view))]
        view.release()
    return found


def test_a_row_is_read_as_it_was_written(stream: Stream) -> None:
    stream.append(7, -8)
    assert rows_of(stream, 1, stream.position()) == [(1, 7, -8, 1)]


def test_position_counts_claimed_rows_without_claiming(stream: Stream) -> None:
    assert stream.position() == 0
    stream.append(1, 2)
    assert (stream.position(), stream.position()) == (1, 1)


def test_the_oldest_rows_are_overwritten_and_the_rest_keep_their_numbers(stream: Stream) -> None:
    for i in range(stream.capacity + 10):
        stream.append(i, 0)
    assert stream.oldest() == 11
    rows = rows_of(stream, 1, stream.position())
    assert [row[0] for row in rows] == list(range(11, stream.capacity + 11))
    assert all(number == seq and a == number - 1 for number, a, _, seq in rows)


def test_a_claimed_but_unwritten_row_lacks_its_number(stream: Stream) -> None:
    offset, seq = stream.claim()
    stream.append(5, 5)
    assert [row[3] for row in rows_of(stream, 1, 2)] == [0, 2]
    stream.pack_into(stream.buffer, offset, 4, 4, seq)
    assert [row[3] for row in rows_of(stream, 1, 2)] == [1, 2]


def test_a_writer_ignores_its_argument_and_writes_values_and_results_of_callables(stream: Stream) -> None:
    write = stream.writer(iter((3, 4)).__next__, 9)
    assert [write("ignored"), write(None)] == [None, None]
    assert rows_of(stream, 1, stream.position()) == [(1, 3, 9, 1), (2, 4, 9, 2)]


def test_a_writer_that_outlives_its_stream_returns_its_argument() -> None:
    stream = Stream("test", ("a", "seq"), retention_bytes=1)
    write = stream.writer(1)
    stream.close()
    given = object()
    assert write(given) is given


def test_many_threads_append_without_losing_a_row(stream: Stream) -> None:
    each, interval = 6000, sys.getswitchinterval()

    def write(writer: int) -> None:
        row = iter(range(each))
        by_c = stream.writer(writer, row.__next__)
        for i in row:
            stream.append(writer, i)
            by_c(None)

    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=write, args=(writer,)) for writer in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    rows = rows_of(stream, 1, stream.position())
    assert len(rows) == len({(a, b) for _, a, b, _ in rows}) == 4 * each


def test_recording_leaves_nothing_for_the_garbage_collector(stream: Stream) -> None:
    collections: list[str] = []
    write = stream.writer(1, time.perf_counter_ns)

    def note(phase: str, info: dict[str, int]) -> None:
        collections.append(phase)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)  # no other thread runs in between: what it makes would be counted
    gc.collect()
    gc.callbacks.append(note)
    try:
        before = gc.get_count()
        for i in repeat(7, 50_000):
            stream.append(i, i)
            write(None)
        after = gc.get_count()
    finally:
        gc.callbacks.remove(note)
        sys.setswitchinterval(interval)
    assert stream.position() == 100_000
    assert collections == []
    # a few come from the loop itself; a row that left anything behind would make it 100,000
    assert after[0] - before[0] < 10 and after[1:] == before[1:]


@given(st.integers(0, 3 * CHUNK_ROWS), st.integers(1, 70_000), st.integers(0, 70_000), st.integers(1, 5000))
def test_any_range_is_read_in_consecutive_pieces(written: int, first: int, more: int, piece: int) -> None:
    stream = Stream("test", ("seq",), retention_bytes=1)
    for _ in range(written):
        stream.append()
    last = min(first + more, stream.position())
    numbers = []
    for number, view in stream.read(first, last, piece):
        assert 0 < len(view) <= piece * stream.row_bytes
        numbers += [seq for (seq,) in struct.iter_unpack("<q", view)]
        assert numbers[-1] - numbers[0] + 1 == len(numbers) and number <= numbers[-1]
        view.release()
    assert numbers == list(range(max(first, stream.oldest()), last + 1))
    stream.close()
