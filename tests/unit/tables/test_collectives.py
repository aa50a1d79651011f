"""probe.collectives derived from the raw rows of several ranks that were written by hand."""

from __future__ import annotations

import pytest
from listed_source import listed

from probe.arrays.arrow import table_of
from probe.host.facts import Facts
from probe.snapshot.log import Log
from probe.snapshot.source import Rank
from probe.streams import BARE, COLLECTIVES, SAMPLED, STEPS
from probe.tables.probe.collectives import TABLE

MS = 1_000_000
NOW = 100 * MS
ALL_REDUCE, BROADCAST, ALL_TO_ALL, SEND, FLOATS, HALVES = 10, 11, 12, 13, 20, 21
STRINGS = {
    ALL_REDUCE: "c10d::allreduce_", BROADCAST: "c10d::broadcast_", ALL_TO_ALL: "c10d::alltoall_base_",
    SEND: "c10d::send", FLOATS: "float32 [4]", HALVES: "float16 [4]",
}  # fmt: skip
GROUPS = {1: {"name": "0", "ranks": [0, 1]}, 2: {"name": "5", "ranks": [1, 2]}}


def row(start, took=1.0, kind=ALL_REDUCE, group=1, size=16, tensor=FLOATS, number=1):
    """In ms; took None: it is in flight."""
    start = int(start * MS)
    done = 0 if took is None else start + int(took * MS)
    return [start, start + 1000, done, kind, group, number, -1, size, tensor, 0, 7, 0]


def derived(
    ranks,
    *,
    boundaries=(10, 20, 30, 40),
    silent=(),
    flags=SAMPLED,
    hosts=("a", "a", "a"),
    skews=(0, 0, 0),
    since=(),
    boots=(None, None, None),
):
    """ranks: rank -> its rows; skews: how far the monotonic clock of each lags behind the first one's, in ms."""
    rows = {}
    for rank, operations in ranks.items():
        log = Log()
        log.strings, log.groups = dict(STRINGS), {id: {**group, "size": 2, "rank": 0} for id, group in GROUPS.items()}
        skew = skews[rank] * MS
        facts = {
            "rank": rank, "host": hosts[rank], "boot_id": boots[rank], "monotonic_ns": NOW - skew, "wall_ns": NOW,
            "step_base": 0, "anchor": "SGD", "collectives_ns": since[rank] * MS if rank < len(since) else None,
        }  # fmt: skip
        raw = Rank(4000 + rank, Facts.parse(facts), {}, log)
        shifted = [[each[0] - skew, each[1] - skew, each[2] and each[2] - skew, *each[3:]] for each in operations]
        rows[raw] = {
            COLLECTIVES: [[*each, seq] for seq, each in enumerate(shifted, start=1)],
            STEPS: [[at * MS - skew, count, 0, 0, 0, 0, 7, flags, count + 1] for count, at in enumerate(boundaries)],
        }

    return table_of(TABLE.columns, TABLE.derive_job(listed(rows))).to_pylist()


def test_an_operation_fills_every_column():
    (one,) = derived({0: [row(12, 4)], 1: [row(15, 1.5)]})
    assert {name: value for name, value in one.items() if not name.endswith("_time")} == {
        "step": 1, "index_in_step": 0, "operation_type": "all_reduce", "group_name": "0", "group_size": 2,
        "group_ranks": [0, 1], "group_seq": 1, "bytes": 16, "first_rank": 0, "last_rank": 1, "spread_ms": 3.0,
        "wait_ms": [3.0, 0.0], "duration_ms": 1.5, "arrived": [0, 1], "missing": [], "unknown": [], "mismatch": None,
        "state": "done", "seqs": [1, 1],
    }  # fmt: skip


def test_the_nth_operation_of_a_step_matches_between_ranks_and_sends_do_not_count():
    found = derived({0: [row(12), row(13, kind=SEND), row(14), row(22)], 1: [row(12.5), row(15), row(25)]})
    assert [(one["step"], one["index_in_step"], one["spread_ms"]) for one in found] == [
        (1, 0, 0.5), (1, 1, 1.0), (2, 0, 3.0)
    ]  # fmt: skip


def test_an_operation_of_another_thread_that_falls_into_another_step_on_each_rank_is_one():
    found = derived({
        0: [row(12, number=4), row(19, number=5), row(19.5, kind=BROADCAST, number=6), row(32, number=7)],
        1: [row(12, number=4), row(21, number=5), row(22, kind=BROADCAST, number=6)],
    })  # fmt: skip
    assert [(one["step"], one["index_in_step"], one["group_seq"], one["arrived"]) for one in found] == [
        (1, 0, 4, [0, 1]), (1, 1, 5, [0, 1]), (1, 2, 6, [0, 1]), (3, 0, 7, [0])
    ]  # fmt: skip
    assert [(one["missing"], one["unknown"], one["mismatch"]) for one in found] == [([], [], None)] * 3 + [
        ([1], [], None)
    ]
    assert found[1]["spread_ms"] == 2.0


def test_what_a_rank_has_not_recorded_it_may_have_issued():
    ranks = {0: [row(12, number=4), row(22, number=5), row(32, number=6)], 1: [row(32, number=6)]}
    told = [(one["missing"], one["unknown"]) for one in derived(ranks)]
    assert told == [([], [1]), ([], [1]), ([], [])]
    behind = {0: [row(12, number=4), row(32, number=6)], 1: [row(12, number=4)]}
    assert derived(behind, flags=BARE)[1]["unknown"] == [1] and derived(behind)[1]["missing"] == [1]


@pytest.mark.parametrize(
    "other",
    [
        [row(12, number=5), row(22, number=6)],  # sends that nobody saw have counted
        [row(11, kind=SEND, number=-1), row(12, number=4), row(22, number=6)],
        [row(12, number=4), row(22, number=1)],  # the group was made anew
        [row(12, number=4), row(22, number=-1)],
    ],
)
def test_where_numbers_do_not_mean_the_same_on_all_ranks_the_nth_of_a_step_is(other):
    found = derived({0: [row(12, number=4), row(22, number=5)], 1: other})
    assert [(one["step"], one["arrived"], one["missing"]) for one in found] == [(1, [0, 1], []), (2, [0, 1], [])]


def test_a_rank_that_has_not_arrived_is_missing():
    (one,) = derived({0: [row(42, None)], 1: []})
    assert (one["state"], one["arrived"], one["missing"], one["unknown"]) == ("in_flight", [0], [1], [])
    assert (one["wait_ms"], one["duration_ms"]) == ([0.0, None], None)


def test_before_the_tap_of_a_rank_its_arrival_is_unknown():
    found = derived({0: [row(12), row(22), row(32)], 1: [row(25), row(32)]}, since=(0, 24))
    assert [(one["step"], one["arrived"], one["missing"], one["unknown"]) for one in found] == [
        (1, [0], [], [1]), (2, [0], [], [1]), (3, [0, 1], [], []),
    ]  # fmt: skip


def test_the_arrival_of_a_silent_rank_is_unknown():
    (one,) = derived({0: [row(42, None)]})
    assert (one["missing"], one["unknown"]) == ([], [1])


def test_in_a_step_without_taps_no_rank_is_missing():
    found = derived({0: [row(12)], 1: []}, flags=BARE)
    assert [(one["missing"], one["unknown"]) for one in found] == [([], [1])]


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"kind": BROADCAST}, "operation: all_reduce on rank 0, broadcast on rank 1"),
        ({"size": 32}, "bytes: 16 on rank 0, 32 on rank 1"),
        ({"tensor": HALVES}, "dtype: float32 on rank 0, float16 on rank 1"),
    ],
)
def test_a_mismatch_is_reported(other, told):
    (one,) = derived({0: [row(12)], 1: [row(12, **other)]})
    assert one["mismatch"] == told


def test_unequal_parts_of_an_all_to_all_are_no_mismatch():
    (one,) = derived({0: [row(12, kind=ALL_TO_ALL)], 1: [row(12, kind=ALL_TO_ALL, size=64)]})
    assert one["mismatch"] is None


def test_groups_are_separate_and_ranks_outside_do_not_count():
    found = derived({0: [row(12)], 1: [row(12), row(13, group=2)], 2: [row(17, group=2)]})
    assert [(one["group_name"], one["group_ranks"], one["last_rank"]) for one in found] == [
        ("0", [0, 1], found[0]["last_rank"]), ("5", [1, 2], 2)
    ]  # fmt: skip


def test_times_of_hosts_are_compared_by_wall_clock():
    (one,) = derived({0: [row(12)], 1: [row(15)]}, hosts=("a", "b", "c"), skews=(0, 5000, 0))
    assert one["spread_ms"] == 3.0


def test_machines_of_one_name_have_a_clock_each():
    (one,) = derived({0: [row(12)], 1: [row(15)]}, boots=("one kernel", "another", None), skews=(0, 5000, 0))
    assert one["spread_ms"] == 3.0


def test_the_steps_of_the_attach_are_not_compared():
    assert derived({0: [row(5), row(12)], 1: [row(12)]})[0]["step"] == 1
