"""Sends and receives that wait, out of rows that were written by hand."""

from __future__ import annotations

from typing import Any

import pytest
from listed_source import listed

from probe.diagnose.hang.in_flight import issued_of, pairs_of
from probe.host.facts import Facts
from probe.snapshot.flight_recorder import pending
from probe.snapshot.log import Log
from probe.snapshot.source import Rank
from probe.streams import COLLECTIVES

SEND, RECV, ANY, ALL_REDUCE = 10, 11, 12, 13
STRINGS = {
    SEND: "c10d::send",
    RECV: "c10d::recv_",
    ANY: "c10d::recv_any_source_",
    ALL_REDUCE: "c10d::allreduce_",
}


def row(kind: int, peer: int = -1, done: int = 0, start: int = 100) -> list[int]:
    return [start, start + 1, done, kind, 1, -1, peer, 8, 0, 0, 7, 0]


def pairs(ranks: dict[int, list[list[int]]]) -> list[tuple[Any, ...]]:
    """(what, who waits, who has not come, of whom it is not known) of each, on ranks 4, 5, 6 of the job."""
    raws = []
    for rank in ranks:
        log = Log()
        log.strings, log.groups = dict(STRINGS), {1: {"name": "7", "ranks": [4, 5, 6], "size": 3, "rank": rank - 4}}
        raws.append(Rank(4000 + rank, Facts(rank=rank, monotonic_ns=50, wall_ns=1050), {}, log))

    numbered = {rank: [[*each, seq] for seq, each in enumerate(rows, start=1)] for rank, rows in ranks.items()}
    found = pairs_of(listed({raw: {COLLECTIVES: numbered[raw.rank]} for raw in raws}))
    assert all(each.group == "7" and each.number == -1 and each.members == (4, 5, 6) for each in found)
    return [(each.kind, each.waiting, each.missing, each.unknown, each.created_ns) for each in found]


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ({4: [row(RECV, 1, done=150)], 5: []}, []),
        ({4: [row(ALL_REDUCE)], 5: []}, []),
        ({4: [row(RECV, 1)], 5: []}, [("recv from rank 5", (4,), (5,), (), 1100)]),
        ({4: [row(SEND, 2)]}, [("send to rank 6", (4,), (6,), (), 1100)]),
        ({4: [row(ANY)], 5: []}, [("recv from any rank", (4,), (), (5, 6), 1100)]),
        # the other half is there, and it does not end
        (
            {4: [row(SEND, 1)], 5: [row(RECV, 0, start=200)]},
            [("send to rank 5", (4,), (), (), 1100), ("recv from rank 4", (5,), (), (), 1200)],
        ),
        # each waits for the other
        (
            {4: [row(RECV, 1)], 5: [row(RECV, 0)]},
            [("recv from rank 5", (4,), (5,), (), 1100), ("recv from rank 4", (5,), (4,), (), 1100)],
        ),
        # of several to the same one the oldest
        ({4: [row(SEND, 1), row(SEND, 1, start=300)]}, [("send to rank 5", (4,), (5,), (), 1100)]),
    ],
)
def test_each_half_of_a_pair_waits_for_its_peer(
    ranks: dict[int, list[list[int]]], expected: list[tuple[Any, ...]]
) -> None:
    assert pairs(ranks) == expected


@pytest.mark.parametrize(
    ("operation", "mismatch"),
    [
        ("c10d::_allgather_base_", "size: [4] on rank 4, [8] on rank 5"),
        ("c10d::_reduce_scatter_base_", "size: [4] on rank 4, [8] on rank 5"),
        ("c10d::allgather_", ""),
    ],
)
def test_unequal_parts_of_one_tensor_do_not_match(operation: str, mismatch: str) -> None:
    tables = {}
    for number, shape in ((4, "[4]"), (5, "[8]")):
        log = Log()
        log.strings = {1: operation, 2: f"float32 {shape}"}
        log.groups = {1: {"name": "7", "ranks": [4, 5], "size": 2, "rank": number - 4}}
        tables[Rank(4000 + number, Facts(rank=number, monotonic_ns=50, wall_ns=1050), {}, log)] = {
            COLLECTIVES: [[100, 101, 0, 1, 1, 3, -1, 8, 2, 0, 7, 0, 1]]
        }
    (one,) = pending(issued_of(listed(tables)), {"7": [4, 5]})
    assert one.mismatch == mismatch
