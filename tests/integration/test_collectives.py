"""The tap of collectives, in a 2-rank gloo job that issues every kind of them (tests/targets/collectives.py)."""

from __future__ import annotations

import statistics

import pyarrow as pa
import pytest
from listed_source import ListedSource
from two_ranks import run_ranks

from probe.derive.flight_history import columns
from probe.host.facts import Facts
from probe.protocol import FLIGHT
from probe.snapshot.flight_recorder import dumped_entries
from probe.snapshot.log import Log
from probe.snapshot.snapshot import Snapshot
from probe.snapshot.source import Rank
from probe.streams import ASYNC_OP, END_UNKNOWN, FAILED

pytestmark = pytest.mark.alone  # it looks at the clock

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def ranks(start_once, tmp_path_factory):
    return run_ranks(start_once, "collectives.py", tmp_path_factory.mktemp("collectives"))


def operations(result):
    return [row["operation"].removeprefix("c10d::") for row in result["rows"]]


def test_ddp_leaves_a_row_for_each_bucket_of_each_step(ranks):
    for rank in ranks:
        ddp = rank["ddp"]
        assert len(ddp["buckets"]) > 1
        for begin, end in zip(ddp["ends"][1:], ddp["ends"][2:], strict=False):
            rows = [row for row in ddp["rows"] if begin < row["seq"] <= end]
            assert {row["operation"] for row in rows} == {"c10d::allreduce_"}
            assert [row["bytes"] for row in rows] == ddp["buckets"]
            assert all(row["start_ns"] < row["issued_ns"] and row["start_ns"] < row["done_ns"] for row in rows)


def test_a_function_aliased_before_the_attach_is_recorded(ranks):
    assert operations(ranks[0]["aliased"]) == ["allreduce_"]


def test_functional_collectives_are_recorded_eager_and_compiled(ranks):
    assert operations(ranks[0]["functional_eager"]) == ["allreduce_", "allgather_into_tensor_coalesced_"]
    assert ranks[0]["functional_eager"]["values"] == [20.0, 20.0]
    assert operations(ranks[0]["functional_compiled"]) == ["allreduce_"]
    assert ranks[0]["functional_compiled"]["values"] == [50.0]


@pytest.mark.parametrize("function", ["waits_later", "waits_at_once"])
def test_dynamo_counts_the_same_where_a_compiled_function_waits(ranks, function):
    with_us, toggled, recorded, without = ranks[0]["compiled_around"]["found"][function]
    assert with_us == without == toggled
    assert recorded == 6 + 3


def test_collectives_in_inference_mode_are_recorded(ranks):
    assert operations(ranks[0]["inference_mode"]) == ["allreduce_"]


def test_send_and_recv_have_a_peer_and_a_wait_but_no_sequence_number(ranks):
    for rank, operation in enumerate(["send", "recv_"]):
        (row,) = ranks[rank]["send_and_recv"]["rows"]
        assert row["operation"] == f"c10d::{operation}"
        assert (row["peer"], row["group_seq"], row["bytes"]) == (1 - rank, -1, 24)
    assert 40e6 < row["done_ns"] - row["start_ns"] < 1e9  # rank 0 sends 50 ms late


def test_tensors_of_sends_that_nobody_waits_for_are_freed(ranks):
    assert [rank["unwaited_sends"]["kept"] for rank in ranks] == [0, 0]
    sends = [row for row in ranks[0]["unwaited_sends"]["rows"] if row["operation"] == "c10d::send"]
    assert len(sends) == 20 and all(row["flags"] & END_UNKNOWN for row in sends)


def test_a_batch_of_isend_and_irecv_leaves_a_row_each(ranks):
    assert operations(ranks[0]["batch_of_isend_irecv"]) == ["send", "recv_"]
    assert [rank["batch_of_isend_irecv"]["values"][0] for rank in ranks] == [1.0, 0.0]


def test_object_collectives_appear_as_the_tensors_that_they_send(ranks):
    assert operations(ranks[0]["objects"]) == ["allgather_", "allgather_", "broadcast_", "broadcast_"]
    assert ranks[0]["objects"]["values"] == ranks[1]["objects"]["values"]


SIZES = {
    "allreduce_": 40,
    "broadcast_": 40,
    "reduce_": 40,
    "allgather_": 80,
    "_allgather_base_": 80,
    "allgather_coalesced_": 80,
    "allgather_into_tensor_coalesced_": 80,
    "reduce_scatter_": 40,
    "_reduce_scatter_base_": 40,
    "reduce_scatter_tensor_coalesced_": 40,
    "alltoall_": 40,
    "alltoall_base_": 40,
    "gather_": 80,
    "scatter_": 80,
    "barrier": 0,
}


def test_sizes_are_those_of_nccl_tests(ranks):
    for rank in ranks:
        rows = rank["every_operation"]["rows"]
        assert {row["operation"].removeprefix("c10d::"): row["bytes"] for row in rows[:15]} == SIZES
        assert operations(rank["every_operation"])[15:] == ["allreduce_", "monitored_barrier_"]
        assert rows[15]["bytes"] == 12  # sparse: an int64 index and a float32


def test_torchs_recorder_agrees_where_it_records_everything(ranks):
    for rank, result in enumerate(ranks):
        raw = Rank(1, Facts(rank=rank), {}, Log())
        Snapshot([ListedSource({raw: {}}, {FLIGHT: {raw: {"groups": {"0": [0, 1]}}}})])
        past = columns(raw, dumped_entries(result["every_operation"]["texts"]))
        names = ("group_name", "group_seq", "bytes", "dtype", "shape", "state")
        rows = pa.table({name: past[name] for name in names}).to_pylist()
        told = {row["group_seq"]: row for row in rows if row["group_name"] == "0"}
        *counted, last = result["every_operation"]["rows"][:16]
        apart = last["group_seq"] - max(told)  # gloo itself counts what two ranks send each other, too
        for row in counted:
            entry = told[row["group_seq"] - apart]
            assert entry["state"] == "done"
            if row["operation"] not in ("c10d::barrier", "c10d::reduce_scatter_"):  # of this it tells one part
                assert (entry["bytes"], f"{entry['dtype']} {entry['shape']}") == (row["bytes"], row["tensor"])


def test_every_operation_ends(ranks):
    for rank in ranks:
        for name, result in rank.items():
            assert [row for row in result.get("rows", ()) if not row["done_ns"] >= row["start_ns"]] == [], name


def test_sequence_numbers_grow_and_agree_between_ranks(ranks):
    numbers = [[row["group_seq"] for row in rank["every_operation"]["rows"]] for rank in ranks]
    assert numbers[0] == numbers[1]
    *numbered, monitored_barrier = numbers[0]
    assert numbered == sorted(set(numbered)) and numbered[0] > 0
    assert monitored_barrier == -1


def test_the_root_of_a_collective_is_its_peer(ranks):
    roots = {row["operation"]: row["peer"] for row in ranks[0]["every_operation"]["rows"] if row["peer"] >= 0}
    assert roots == {f"c10d::{name}": 1 for name in ("broadcast_", "reduce_", "gather_", "scatter_")}


def test_async_op_is_true_where_the_caller_asked_for_it(ranks):
    (asked,), (not_asked,) = ranks[0]["in_flight"]["rows"], ranks[0]["aliased"]["rows"]
    assert asked["flags"] & ASYNC_OP and not not_asked["flags"] & ASYNC_OP


def test_a_coalescing_manager_is_one_operation_of_several_tensors(ranks):
    (row,) = ranks[0]["coalesced"]["rows"]
    assert (row["operation"], row["bytes"], row["tensor"]) == ("c10d::allreduce_coalesced_", 56, "float32 [10] +1")


def test_fsdp2_gathers_and_scatters(ranks):
    seen = operations(ranks[0]["fsdp2"])
    assert {"_allgather_base_", "_reduce_scatter_base_"} <= set(seen)


def test_operations_are_attributed_to_their_groups(ranks):
    result = ranks[1]["several_groups"]
    groups = [row["group"] for row in result["rows"] if row["seq"] > result["from"]]
    assert [group["ranks"] for group in groups] == [[0, 1], [1], [0, 1]]
    assert len({group["name"] for group in groups}) == 3
    assert [(group["size"], group["rank"], group["backend"]) for group in groups] == [
        (2, 1, "gloo"), (1, 0, "gloo"), (2, 1, "gloo")
    ]  # fmt: skip


def test_a_wait_leaves_a_span_unless_the_operation_itself_waits(ranks):
    for rank, result in enumerate(ranks):
        found = result["waits"]["found"]
        assert {way: [count for count, _, _ in times] for way, times in found.items()} == {
            "at once": [0] * 5, "later": [1] * 5, "functional": [1] * 5, "recv": [1] * 5, "not recorded": [0] * 5
        }  # fmt: skip
        assert all(within for times in found.values() for _, _, within in times)
        for way in ("later", "functional", "recv"):
            longest = [ms for _, ms, _ in found[way]]
            if rank == 0:
                assert min(longest) > 20 and max(longest) < 500, way
            else:  # which nobody keeps waiting, though it may stand still itself now and then
                assert statistics.median(longest) < 20, way


def test_the_caller_gets_the_original_work_and_the_original_exception(ranks):
    result = ranks[0]["work_semantics"]
    assert result["seen"] == {"type": "Work", "future": True, "waited": True, "completed": True, "same": True}
    assert result["refused"] == result["refused_untapped"] and result["refused"][0] == "RuntimeError"
    assert result["rows"][-1]["flags"] & FAILED


def test_an_operation_that_times_out_is_recorded_as_failed(ranks):
    (row,) = [row for row in ranks[0]["timed_out"]["rows"] if row["group"]["name"] != "0"]
    assert ranks[0]["timed_out"]["told"] and row["flags"] & FAILED
    assert row["done_ns"] - row["start_ns"] > 150e6


def test_a_one_sided_collective_of_an_eval_is_refused(ranks):
    for rank in ranks:
        told = rank["one_sided"]["told"]
        assert "rank 1" in told["one all_reduce"] and "on all ranks" in told["one all_reduce"]
        assert "barrier" in told["one barrier"]
        assert "--now" in told["now all_reduce"] and "--now" in told["now barrier"]
        assert told["all all_reduce"] is None and told["all barrier"] is None
        assert operations(rank["one_sided"]) == ["allreduce_", "barrier"]


def test_a_failure_of_the_tap_turns_it_off_and_never_reaches_the_caller(ranks):
    result = ranks[0]["own_failure"]
    assert result["values"] == [4.0, 4.0]
    assert result["why"].startswith("TypeError") and result["left"] == 0


def test_nothing_is_recorded_in_a_forked_child(ranks):
    assert ranks[0]["forked"]["status"] == 0


def test_an_operation_in_flight_has_a_row(ranks):
    assert ranks[0]["in_flight"]["issued_ns"] > 0 and ranks[0]["in_flight"]["done_ns"] == 0
    (row,) = ranks[0]["in_flight"]["rows"]
    assert row["done_ns"] - row["start_ns"] > 100e6


def test_a_torch_function_mode_of_the_job_sees_no_call_of_ours(ranks):
    assert ranks[0]["modes_of_the_user"]["tapped"] == ranks[0]["modes_of_the_user"]["untapped"]


def test_the_tap_stays_on_in_every_scenario(ranks):
    assert {name: result["why_off"] for name, result in ranks[0].items() if result.get("why_off")} == {}


def test_kernels_stay_while_a_thread_is_inside_one(ranks):
    assert ranks[0]["removed_too_early"]["removed"] == [False, True]


def test_removal_restores_the_dispatcher_and_work(ranks):
    assert ranks[0]["removed"] == {"same": [True, True, True], "removed": True, "nothing": True}
