"""The Flight Recorder of several ranks: who has not come, and what does not fit."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from probe.snapshot.flight_recorder import Entry, entries_of, pending

GROUPS = {"0": [0, 1, 2], "1": [0, 2]}


def entry(number: int, kind: str = "all_reduce", group: str = "0", ended: bool = False, **fields: Any) -> Entry:
    return Entry(group, number, kind, fields.get("sizes", "[[4]]"), fields.get("dtypes", "float"), number * 1000, ended)


def history(last: int, **fields: Any) -> list[Entry]:
    return [entry(number, ended=True) for number in range(1, last)] + [entry(last, **fields)]


def test_a_dump_is_read_oldest_first_without_what_two_ranks_send_each_other() -> None:
    told: dict[str, Any] = {
        "process_group": ["0", "default_pg"], "collective_seq_id": 5, "profiling_name": "gloo:all_reduce",
        "input_sizes": [[5]], "input_dtypes": ["Float"], "time_created_ns": 9, "retired": False, "state": "scheduled",
        "is_p2p": False,
    }  # fmt: skip
    earlier = told | {"collective_seq_id": 4, "time_created_ns": 8, "retired": True}
    text = json.dumps({"entries": [told, earlier, told | {"is_p2p": True}]})
    assert entries_of([text]) == [
        Entry("0", 4, "all_reduce", "[[5]]", "float", 8, True, "gloo"),
        Entry("0", 5, "all_reduce", "[[5]]", "float", 9, False, "gloo"),
    ]
    assert entries_of([]) == []


def dump(made: int, *numbers: int, ended: bool = True, group: str = "0", **fields: Any) -> list[dict[str, Any]]:
    return [
        {"process_group": [group, ""], "pg_id": made, "collective_seq_id": number, "profiling_name": "nccl:all_reduce",
         "time_created_ns": made * 1000 + number, "retired": ended, **fields}
        for number in numbers
    ]  # fmt: skip


def test_a_group_that_was_made_anew_is_not_taken_for_the_one_before_it() -> None:
    before = [*dump(0, *range(1, 50), input_sizes=[[8]]), *dump(0, 50, ended=False), *dump(1, 9, group="1")]
    now = [*dump(2, 1, 2), *dump(2, 3, ended=False)], [*dump(2, 1, 2), *dump(2, 7, is_p2p=True)]
    ranks = {rank: entries_of([json.dumps({"entries": [*before, *each]})]) for rank, each in enumerate(now)}
    (one,) = pending(ranks, {"0": [0, 1]})
    assert (one.number, one.arrived, one.missing, one.mismatch) == (3, (0,), (1,), "")
    assert [each.number for each in ranks[1]] == [9, 1, 2], "the other group is still there"


@pytest.mark.parametrize("late_ns", [0, 300], ids=["in time", "late"])
def test_who_has_issued_nothing_in_a_group_that_was_made_anew_has_not_come(late_ns: int) -> None:
    before = dump(0, *range(1, 51))
    late = [*before[:-1], before[-1] | {"time_created_ns": 50 + late_ns}]
    told = [[*before, *dump(2, 1, ended=False)], [*late, *dump(1, 9, group="1")]]
    ranks = {rank: entries_of([json.dumps({"entries": each})]) for rank, each in enumerate(told)}
    (one,) = pending(ranks, {"0": [0, 1]})
    assert (one.number, one.arrived, one.missing, one.mismatch) == (1, (0,), (1,), "")


def test_who_came_first_to_a_group_that_was_made_anew_is_of_it() -> None:
    last = [{**each, "time_created_ns": 1900} for each in dump(2, 1, ended=False)]  # the others were there before it
    told = [[*dump(0, *range(1, 51)), *dump(2, 1)], [*dump(0, *range(1, 51)), *last], last]
    ranks = {rank: entries_of([json.dumps({"entries": each})]) for rank, each in enumerate(told)}
    (one,) = pending(ranks, {"0": [0, 1, 2]})
    assert (one.number, one.arrived, one.missing) == (1, (0, 1, 2), ())


def test_a_dump_that_does_not_say_which_group_was_made_when_is_read_as_a_whole() -> None:
    text = json.dumps({"entries": [each | {"pg_id": None} for each in [*dump(0, 1), *dump(1, 2)]]})
    assert [each.number for each in entries_of([text])] == [1, 2]


def test_who_has_not_come_is_missing_and_who_told_nothing_is_unknown() -> None:
    (one,) = pending({0: history(7), 1: history(6, ended=True)}, GROUPS)
    assert (one.number, one.arrived, one.waiting) == (7, (0,), (0,))
    assert (one.missing, one.unknown, one.mismatch) == ((1,), (2,), "")


def test_who_is_further_has_come_although_its_entry_is_overwritten() -> None:
    (one,) = pending({0: [entry(3)], 1: [entry(9, ended=True)], 2: [entry(3, ended=True)]}, GROUPS)
    assert one.missing == () and one.arrived == (0, 1, 2)


def test_two_backends_of_a_group_count_each_for_itself() -> None:
    ranks = {rank: [entry(5, "barrier", ended=True), replace(entry(5), backend="nccl")] for rank in (0, 2)}
    (one,) = pending(ranks, {"0": [0, 2]})
    assert (one.kind, one.waiting, one.mismatch) == ("all_reduce", (0, 2), "")


def test_nothing_is_pending_where_all_has_ended() -> None:
    assert pending({0: history(7, ended=True), 1: history(7, ended=True)}, GROUPS) == []


def test_what_does_not_fit_is_told_with_who_has_which() -> None:
    ranks = {0: [entry(4)], 1: [entry(4, "broadcast")], 2: [entry(4)]}
    assert pending(ranks, GROUPS)[0].mismatch == "operation: all_reduce on ranks 0, 2, broadcast on rank 1"
    sizes = {0: [entry(4)], 1: [entry(4, sizes="[[8]]")], 2: [entry(4)]}
    assert pending(sizes, GROUPS)[0].mismatch == "size: [[4]] on ranks 0, 2, [[8]] on rank 1"
    types = {0: [entry(4)], 1: [entry(4, dtypes="half")], 2: [entry(4)]}
    assert pending(types, GROUPS)[0].mismatch == "dtype: float on ranks 0, 2, half on rank 1"


def test_ranks_may_give_unequal_parts_to_what_gathers() -> None:
    ranks = {rank: [entry(4, "all_gather", sizes=f"[[{rank}]]")] for rank in range(3)}
    assert pending(ranks, GROUPS)[0].mismatch == ""


@pytest.mark.parametrize("kind", ["_all_gather_base", "_reduce_scatter_base"])
def test_ranks_must_give_equal_parts_of_one_tensor(kind: str) -> None:
    told = {"profiling_name": f"nccl:{kind}"}
    dumps = [json.dumps({"entries": dump(0, 4, ended=False, input_sizes=[[size]], **told)}) for size in (4, 8, 4)]
    (one,) = pending({rank: entries_of([text]) for rank, text in enumerate(dumps)}, GROUPS)
    assert one.mismatch == "size: [[4]] on ranks 0, 2, [[8]] on rank 1"


def test_groups_are_told_apart_and_the_oldest_comes_first() -> None:
    ranks = {0: [entry(2, group="1"), entry(1)], 1: [entry(1)], 2: [entry(1)]}
    first, second = pending(ranks, GROUPS)
    assert (first.group, first.missing) == ("0", ()) and (second.group, second.missing) == ("1", (2,))
