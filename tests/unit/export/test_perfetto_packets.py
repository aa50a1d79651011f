"""Packets made in bulk are those that Perfetto's classes make one by one; lanes hold slices that nest."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent

from probe.export.perfetto_lanes import lanes
from probe.export.perfetto_packets import Argument, Packets, Slices

NUMBERS = st.integers(0, 2**63 - 1)
INTERVALS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 8)), max_size=12)


@settings(max_examples=40)
@given(st.lists(st.tuples(NUMBERS, NUMBERS, st.floats(allow_nan=False), st.booleans(), NUMBERS), min_size=1))
def test_packets_have_the_numbers_that_they_were_given(rows: list[tuple[int, int, float, bool, int]]) -> None:
    start, steps, values, valid, flow = (np.array(column) for column in zip(*rows, strict=True))
    packets, many = Packets(), np.arange(len(rows))
    slices = Slices("kind", many + 1, start, start, many + 1, flow, [
        Argument("step", "int_value", steps, valid), Argument("ms", "double_value", values, ~valid)
    ])  # fmt: skip
    packets.slices(slices, np.stack([many, ~many], 1).reshape(-1))
    parsed = Trace.FromString(b"".join(packets.parts)).packet
    events = [packet for packet in parsed if packet.HasField("track_event")]
    for place, (at, step, value, is_valid, its_flow) in enumerate(rows):
        begin, end = events[2 * place : 2 * place + 2]
        assert begin.timestamp == end.timestamp == at
        assert begin.track_event.track_uuid == end.track_event.track_uuid == place + 1
        assert (begin.track_event.type, end.track_event.type) == (
            TrackEvent.TYPE_SLICE_BEGIN,
            TrackEvent.TYPE_SLICE_END,
        )
        assert list(begin.track_event.flow_ids) == ([its_flow] if its_flow else [])
        (argument,) = begin.track_event.debug_annotations
        assert (argument.int_value if is_valid else argument.double_value) == (step if is_valid else value)


@given(INTERVALS, st.booleans())
def test_slices_of_a_lane_lie_within_each_other_or_apart(intervals: list[tuple[int, int]], nests: bool) -> None:
    start = np.array([begin for begin, _ in intervals], np.int64)
    end = start + np.array([length for _, length in intervals], np.int64)
    lane, order = lanes(start, end, nests)
    assert sorted(order.tolist()) == list(range(-len(start), len(start)))
    for one in set(lane.tolist()):
        events = [event for event in order.tolist() if lane[max(event, ~event)] == one]
        times = [int(end[~event] if event < 0 else start[event]) for event in events]
        assert all(before <= after for before, after in pairwise(times))
        inside: list[int] = []
        for event in events:
            assert event < 0 or nests or not inside
            inside.append(event) if event >= 0 else inside.remove(inside[-1] if inside[-1] == ~event else -1)
        assert not inside


@pytest.mark.parametrize(
    ("intervals", "expected"),
    [
        ([(0, 9), (1, 4), (5, 8)], [0, 0, 0]),  # nested and disjoint
        ([(0, 5), (3, 8), (4, 5), (9, 10)], [0, 1, 0, 0]),  # the second begins within the first and ends outside
        ([(5, 5), (0, 5)], [0, 0]),
    ],
)
def test_what_nests_stays_on_one_lane(intervals: list[tuple[int, int]], expected: list[int]) -> None:
    start, end = np.array(intervals, np.int64).T
    assert lanes(start, end, nests=True)[0].tolist() == expected
