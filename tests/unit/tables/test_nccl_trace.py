"""python.nccl_trace derived from raw rows that were written by hand."""

from __future__ import annotations

import pytest
from listed_source import listed

from probe.agent.taps.collectives import operations as collective_ops
from probe.arrays.arrow import table_of
from probe.derive.operation_types import BUS_FACTORS, operation_type
from probe.derive.partition import Partition
from probe.host.facts import Facts
from probe.schema import COMMON
from probe.snapshot.log import Log
from probe.snapshot.source import Rank
from probe.streams import ASYNC_OP, ASYNC_UNKNOWN, COLLECTIVES, EVAL, FAILED, SAMPLED, SPANS, STEPS
from probe.tables.python.nccl_trace import TABLE

MS = 1_000_000
NOW = 100 * MS
GROUP, PAIR, UNKNOWN = 1, 2, 3
OPERATION_TYPES = {
    "c10d::_allgather_base_": "all_gather",
    "c10d::_reduce_scatter_base_": "reduce_scatter",
    "c10d::allgather_": "all_gather",
    "c10d::allgather_coalesced_": "all_gather",
    "c10d::allgather_into_tensor_coalesced_": "all_gather",
    "c10d::allreduce_": "all_reduce",
    "c10d::allreduce_coalesced_": "all_reduce",
    "c10d::alltoall_": "all_to_all",
    "c10d::alltoall_base_": "all_to_all",
    "c10d::barrier": "barrier",
    "c10d::broadcast_": "broadcast",
    "c10d::gather_": "gather",
    "c10d::monitored_barrier_": "barrier",
    "c10d::recv_": "recv",
    "c10d::recv_any_source_": "recv",
    "c10d::reduce_": "reduce",
    "c10d::reduce_scatter_": "reduce_scatter",
    "c10d::reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "c10d::scatter_": "scatter",
    "c10d::send": "send",
}
OPERATIONS = dict(enumerate(OPERATION_TYPES, start=100))
ID = {name.removeprefix("c10d::"): id for id, name in OPERATIONS.items()}
TENSOR, TENSORS, SOURCE = 10, 11, 12
MAIN_THREAD = 7
COLUMNS = [column for column in TABLE.columns if column not in COMMON or column.name in ("step", "in_eval", "start_ns")]


def operation(name, start, done, *, group=GROUP, issued=None, number=1, peer=-1, size=4000, tensor=TENSOR, flags=0):
    issued = start + 50_000 if issued is None else issued
    return [start, issued, done, ID[name], group, number, peer, size, tensor, SOURCE, MAIN_THREAD, flags]


def derived(operations, *, boundaries=(10 * MS, 20 * MS, 30 * MS, 40 * MS), spans=(), first=1, open_steps=False):
    log = Log()
    log.strings = OPERATIONS | {TENSOR: "float32 [10, 100]", TENSORS: "bfloat16 [8] +3", SOURCE: "ddp"}
    log.groups = {
        GROUP: {"name": "0", "backend": "gloo", "size": 4, "rank": 1, "ranks": [0, 1, 2, 3]},
        PAIR: {"name": "5", "backend": "nccl", "size": 2, "rank": 0, "ranks": [3, 6]},
        UNKNOWN: {"name": "6", "backend": "nccl", "size": 2, "rank": 0, "ranks": None},
    }
    facts = {"rank": 1, "host": "a", "monotonic_ns": NOW, "wall_ns": NOW, "step_base": 0, "anchor": "SGD"}
    raw = Rank(4242, Facts.parse(facts), {}, log)
    rows = {
        COLLECTIVES: [[*row, first + place] for place, row in enumerate(operations)],
        STEPS: [[at, count, 0, 0, 0, 0, MAIN_THREAD, SAMPLED, count + 1] for count, at in enumerate(boundaries)],
        SPANS: [[*span, place] for place, span in enumerate(spans, start=1)],
    }

    listed({raw: rows}, open_steps)
    return table_of(COLUMNS, TABLE.derive(Partition.of(raw))).to_pylist()


def one(*arguments, **keywords):
    (row,) = derived([operation(*arguments, **keywords)])
    return row


def test_an_operation_fills_every_column():
    row = one("allreduce_", 12 * MS, 14 * MS, number=77, flags=ASYNC_OP)
    assert row == {
        "start_ns": 12 * MS,
        "step": 1,
        "in_eval": False,
        "seq": 1,
        "operation_type": "all_reduce",
        "backend": "gloo",
        "group_name": "0",
        "group_size": 4,
        "group_rank": 1,
        "group_ranks": [0, 1, 2, 3],
        "group_seq": 77,
        "peer": None,
        "bytes": 4000,
        "dtype": "float32",
        "shape": "[10, 100]",
        "async_op": True,
        "source": "ddp",
        "issue_us": 50.0,
        "duration_ms": 2.0,
        "age_ms": None,
        "algbw_gbps": pytest.approx(4000 / 2e-3 / 1e9),
        "busbw_gbps": pytest.approx(4000 / 2e-3 / 1e9 * 1.5),
        "state": "done",
        "from_flight_recorder": False,
    }


# nccl-tests: algbw = S / t for all; busbw by doc/PERFORMANCE.md, for 4 ranks
@pytest.mark.parametrize(
    ("name", "factor"),
    [
        ("allreduce_", 2 * 3 / 4),
        ("allreduce_coalesced_", 2 * 3 / 4),
        ("_allgather_base_", 3 / 4),
        ("_reduce_scatter_base_", 3 / 4),
        ("alltoall_base_", 3 / 4),
        ("gather_", 3 / 4),
        ("scatter_", 3 / 4),
        ("broadcast_", 1),
        ("reduce_", 1),
        ("send", 1),
        ("recv_", 1),
    ],
)
def test_bandwidths_match_nccl_tests(name, factor):
    row = one(name, 12 * MS, 14 * MS, size=8_000_000)
    assert row["algbw_gbps"] == pytest.approx(4.0)
    assert row["busbw_gbps"] == pytest.approx(4.0 * factor)


def test_a_barrier_has_no_size_tensor_or_bandwidth():
    row = one("barrier", 12 * MS, 14 * MS, size=0, tensor=0)
    assert (row["bytes"], row["dtype"], row["shape"]) == (0, None, None)
    assert row["algbw_gbps"] is None and row["busbw_gbps"] is None and row["duration_ms"] == 2.0


def test_several_tensors_are_shown_by_the_first_and_their_count():
    row = one("allreduce_coalesced_", 12 * MS, 14 * MS, tensor=TENSORS)
    assert (row["dtype"], row["shape"]) == ("bfloat16", "[8] +3")


def test_a_peer_is_a_rank_of_the_job():
    assert one("broadcast_", 12 * MS, 14 * MS, group=PAIR, peer=1)["peer"] == 6
    assert one("send", 12 * MS, 14 * MS, group=UNKNOWN, peer=1)["peer"] is None
    assert one("send", 12 * MS, 14 * MS, group=UNKNOWN, peer=1)["group_ranks"] is None


def test_send_and_recv_have_no_sequence_number_and_no_async_op():
    row = one("send", 12 * MS, 14 * MS, number=-1, peer=2, flags=ASYNC_UNKNOWN)
    assert row["group_seq"] is None and row["async_op"] is None and row["peer"] == 2


def test_where_the_arguments_do_not_say_whether_it_is_async_nor_does_the_row():
    rows = [one("allreduce_", 12 * MS, 14 * MS, flags=flags) for flags in (ASYNC_OP, 0, ASYNC_UNKNOWN)]
    assert [row["async_op"] for row in rows] == [True, False, None]


def test_an_operation_in_flight_is_visible_in_the_open_step_and_before_the_first_whole_one():
    rows = derived([operation("allreduce_", 1 * MS, 0), operation("allreduce_", 45 * MS, 0)])
    assert [(row["state"], row["age_ms"], row["duration_ms"]) for row in rows] == [
        ("in_flight", 99.0, None),
        ("in_flight", 55.0, None),
    ]
    assert [row["algbw_gbps"] for row in rows] == [None, None]


def test_an_operation_that_blocks_its_caller_is_in_flight():
    row = one("allreduce_", 45 * MS, 0, issued=0, number=-1)
    assert (row["state"], row["issue_us"], row["group_seq"]) == ("in_flight", None, None)


def test_finished_operations_of_the_first_and_the_open_step_are_hidden():
    operations = [operation("allreduce_", at * MS, (at + 1) * MS) for at in (5, 12, 45)]
    assert [row["start_ns"] for row in derived(operations, boundaries=(10 * MS, 20 * MS, 44 * MS))] == [12 * MS]
    assert len(derived(operations, open_steps=True)) == 3


def test_a_step_whose_first_rows_were_overwritten_is_hidden():
    operations = [operation("allreduce_", at * MS, (at + 1) * MS) for at in (12, 22)]
    assert [row["step"] for row in derived(operations, first=900)] == [2]


def test_a_failed_operation_has_the_state_failed():
    row = one("allreduce_", 12 * MS, 14 * MS, flags=FAILED, issued=0, number=-1)
    assert (row["state"], row["algbw_gbps"], row["issue_us"]) == ("failed", None, None)


def test_operations_of_an_eval_are_marked():
    eval_span = [11 * MS, 13 * MS, 0, MAIN_THREAD, EVAL]
    rows = derived([operation("allreduce_", at * MS, (at + 1) * MS) for at in (12, 14)], spans=[eval_span])
    assert [row["in_eval"] for row in rows] == [True, False]


def test_without_operations_there_are_no_rows():
    assert derived([]) == []


def test_every_operation_that_the_tap_knows_has_a_type_and_every_type_but_barrier_a_bandwidth():
    known = {*collective_ops.SIZED, *collective_ops.SIZELESS}
    assert {name.removeprefix("c10d::") for name in OPERATION_TYPES} == known
    assert {name: operation_type(name) for name in OPERATION_TYPES} == OPERATION_TYPES
    assert set(OPERATION_TYPES.values()) - {"barrier"} == set(BUS_FACTORS)


def test_an_operation_of_a_later_torch_keeps_its_own_name():
    assert operation_type("c10d::all_gather_v_") == "all_gather_v"
