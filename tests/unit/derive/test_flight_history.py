"""What torch's own recorder has from before the attach, as rows; NCCL's words for it included."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from listed_source import ListedSource

from probe import protocol as wire
from probe.derive.flight_history import columns, history_of
from probe.derive.operation_types import operation_type
from probe.host.facts import Facts
from probe.snapshot.flight_recorder import entries_of
from probe.snapshot.log import Log
from probe.snapshot.snapshot import Snapshot
from probe.snapshot.source import Rank

MS, WALL_NS = 1_000_000, 1_700_000_000_000_000_000
NOW_NS = 100 * MS


def entry(record: int, at_ms: float, name: str = "nccl:all_reduce", **fields: Any) -> dict[str, Any]:
    return {
        "record_id": record, "process_group": ["0", "default_pg"], "profiling_name": name, "collective_seq_id": record,
        "is_p2p": False, "input_sizes": [[8, 4]], "input_dtypes": ["Float"], "output_sizes": [[8, 4]],
        "output_dtypes": ["Float"], "time_created_ns": WALL_NS + int(at_ms * MS), "retired": True,
        "state": "completed", **fields,
    }  # fmt: skip


def rank(told: list[dict[str, Any]], **facts: Any) -> tuple[Rank, list[str]]:
    """A rank whose recorder has these, and the list of what it was asked."""
    known = {"rank": 3, "monotonic_ns": NOW_NS, "wall_ns": WALL_NS + NOW_NS, "distributed": True}
    raw = Rank(1, Facts.parse({**known, "collectives_ns": None, **facts}), {}, Log())
    answer = {"texts": [json.dumps({"entries": told})], "groups": {"0": [1, 3]}}
    source = ListedSource({raw: {}}, {wire.FLIGHT: {raw: answer}})
    Snapshot([source])
    return raw, source.asked


def rows(raw: Rank) -> list[dict[str, Any]]:
    made = {name: value() if callable(value) else value for name, value in columns(raw, history_of(raw)).items()}
    told: list[dict[str, Any]] = pa.table({name: pa.array(value) for name, value in made.items()}).to_pylist()
    return told


def test_all_is_told_oldest_first_as_long_as_the_tap_waits() -> None:
    raw, asked = rank([entry(2, 49), entry(1, 10)])
    assert [row["start_ns"] for row in rows(raw)] == [10 * MS, 49 * MS]
    assert asked == [wire.FLIGHT]


@pytest.mark.parametrize("facts", [{"collectives_ns": 50 * MS}, {"distributed": False}, {"count": 1}])
def test_a_job_that_goes_on_or_has_no_collectives_is_not_asked(facts: dict[str, Any]) -> None:
    raw, asked = rank([entry(1, 10)], **facts)
    assert rows(raw) == [] and asked == []


def test_what_is_in_flight_has_an_age() -> None:
    raw, _ = rank([entry(1, 10), entry(2, 30, retired=False, state="started")])
    assert [(row["state"], row["age_ms"]) for row in rows(raw)] == [("done", None), ("in_flight", 70.0)]


def test_times_of_another_host_are_those_of_its_monotonic_clock() -> None:
    """Its wall clock is 3 s ahead, which its facts are without, and its recorder is not."""
    ahead = {"clock_offset_ns": 3000 * MS, "clock_error_ns": MS}
    told = [entry(1, 3010), entry(2, 3030, retired=False, state="started")]
    assert [(row["start_ns"], row["age_ms"]) for row in rows(rank(told, **ahead)[0])] == [
        (10 * MS, None),
        (30 * MS, 70.0),
    ]
    texts = [json.dumps({"entries": told})]
    assert [each.created_ns for each in entries_of(texts, 3000 * MS)] == [WALL_NS + 10 * MS, WALL_NS + 30 * MS]


def test_of_a_batch_of_sends_nobody_tells_the_state() -> None:
    raw, _ = rank([entry(1, 10, "nccl:send 1->0", is_p2p=True, retired=False, state="scheduled")])
    assert [(row["state"], row["age_ms"]) for row in rows(raw)] == [(None, None)]


def test_an_operation_in_every_column() -> None:
    (row,) = rows(rank([entry(7, 10, duration_ms=0.5)])[0])
    assert row == {
        "start_ns": 10 * MS, "in_eval": False, "from_flight_recorder": True, "operation_type": "all_reduce",
        "backend": "nccl", "group_name": "0", "group_size": 2, "group_rank": 1, "group_ranks": [1, 3], "group_seq": 7,
        "peer": None, "bytes": 128, "dtype": "float32", "shape": "[8, 4]", "duration_ms": 0.5, "age_ms": None,
        "algbw_gbps": 128 / 0.5e6, "busbw_gbps": 128 / 0.5e6, "state": "done",
    }  # fmt: skip


def test_send_and_recv_have_a_peer_and_no_number() -> None:
    told = [entry(1, 10, "nccl:send 1->0", is_p2p=True), entry(2, 11, "nccl:recv 1<-0", is_p2p=True)]
    sent, received = rows(rank(told)[0])
    assert [sent["operation_type"], received["operation_type"]] == ["send", "recv"]
    assert sent["peer"] == received["peer"] == 1 and sent["group_seq"] is None and sent["bytes"] == 128


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("_all_gather_base", "all_gather"), ("all_gather_into_tensor_coalesced", "all_gather"),
        ("_reduce_scatter_base", "reduce_scatter"), ("reduce_scatter_tensor_coalesced", "reduce_scatter"),
        ("all_to_allv", "all_to_all"), ("alltoall_base", "all_to_all"), ("allreduce_coalesced", "all_reduce"),
        ("all_reduce_barrier", "barrier"), ("broadcast", "broadcast"), ("coalesced", "coalesced"),
    ],
)  # fmt: skip
def test_names_of_recorders_are_those_of_the_table(name: str, expected: str) -> None:
    assert operation_type(name) == expected


def test_what_cannot_be_known_is_null() -> None:
    odd = entry(1, 10, "nccl:coalesced", input_sizes=[], input_dtypes=[], process_group=["9", ""])
    new = entry(2, 11, input_dtypes=["Float4"])
    first, second = rows(rank([odd, new])[0])
    assert [first[name] for name in ("bytes", "dtype", "shape", "group_size", "group_ranks", "algbw_gbps")] == [
        None
    ] * 6
    assert (second["bytes"], second["dtype"]) == (None, "Float4")
