"""Which operations of a snippet begin: on all ranks that take part or on none, in whatever order the ranks come."""

from __future__ import annotations

import random
import sys
from collections import Counter
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from probe.evals.operations import Operation, Operations

WORLD = 4
GROUPS = {"0": (0, 1, 2, 3), "1": (0, 1), "2": (2, 3), "3": (1, 2)}
collectives = st.builds(
    lambda name, group: Operation(name, group, GROUPS[group]),
    st.sampled_from(["allreduce", "barrier"]),
    st.sampled_from([*GROUPS]),
)


def of(operations: Operations, wanted: dict[int, Operation]) -> dict[int, str]:
    for rank, operation in wanted.items():
        operations.stands(rank, operation)
    return operations.decide()


def send(source: int, target: int) -> Operation:
    return Operation("send", "0", tuple(sorted((source, target))), target)


def receive(target: int, source: int) -> Operation:
    return Operation("recv", "0", tuple(sorted((source, target))), source)


BARRIER = Operation("barrier", "0", (0, 1))


def test_an_operation_begins_when_the_last_of_its_ranks_has_come() -> None:
    operations = Operations()
    assert of(operations, {0: BARRIER}) == {}
    assert of(operations, {1: BARRIER}) == {0: "", 1: ""}
    assert operations.decide() == {}


def test_ranks_that_come_one_after_the_other_are_not_each_compared_with_each() -> None:
    """While this decides, no rank is told to stay in front of its operation."""
    world, calls = 96, 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    operations = Operations()
    sys.setprofile(count)
    try:
        for rank in range(world):
            answers = of(operations, {rank: Operation("barrier", "0", tuple(range(world)))})
    finally:
        sys.setprofile(None)
    assert answers == dict.fromkeys(range(world), "")
    assert calls < 10 * world**2  # and not its third power


def test_a_rank_that_has_ended_is_named_with_its_error() -> None:
    operations = Operations()
    operations.has_ended(1, "ValueError: no")
    assert of(operations, {0: BARRIER}) == {0: "rank 1 has ended the snippet without it (ValueError: no)"}


def test_ranks_in_front_of_different_operations_are_both_refused() -> None:
    answers = of(Operations(), {0: BARRIER, 1: Operation("allreduce", "0", (0, 1))})
    assert answers == {
        0: "rank 1 stands in front of allreduce on group '0'",
        1: "rank 0 stands in front of barrier on group '0'",
    }


def test_groups_used_in_different_orders_are_a_cycle() -> None:
    inner, outer = Operation("allreduce", "1", (0, 1)), Operation("allreduce", "2", (0, 1))
    assert set(of(Operations(), {0: inner, 1: outer})) == {0, 1}


def test_a_rank_that_runs_may_still_come() -> None:
    """Rank 2 has yet to come to what rank 1 waits for, after which rank 1 may come to what rank 0 waits for."""
    operations = Operations()
    assert of(operations, {0: Operation("barrier", "1", (0, 1)), 1: Operation("barrier", "3", (1, 2))}) == {}


def test_a_send_begins_with_its_receive() -> None:
    operations = Operations()
    assert of(operations, {0: send(0, 1)}) == {}
    assert of(operations, {1: receive(1, 0)}) == {0: "", 1: ""}


def test_a_ring_of_sends_begins_before_its_receives() -> None:
    operations = Operations()
    assert of(operations, {rank: send(rank, (rank + 1) % 3) for rank in range(3)}) == {0: "", 1: "", 2: ""}
    assert of(operations, {1: receive(1, 0)}) == {1: ""}
    assert of(operations, {0: receive(0, 2), 2: receive(2, 1)}) == {0: "", 2: ""}


def test_a_receive_takes_what_bears_its_tag() -> None:
    first, second = (Operation("send", "0", (0, 1), 1, tag) for tag in (1, 2))
    operations = Operations()
    wanted = {0: first, 1: Operation("recv", "0", (0, 1), 0, 2)}
    assert of(operations, wanted) == {0: ""}  # sent ahead, for its rank may send the second then
    assert of(operations, {0: second}) == {0: "", 1: ""}
    assert of(operations, {1: Operation("recv", "0", (0, 1), 0, 1)}) == {1: ""}


def test_ranks_that_both_receive_are_refused() -> None:
    assert set(of(Operations(), {0: receive(0, 1), 1: receive(1, 0)}).values()) == {
        "rank 1 stands in front of recv on group '0'",
        "rank 0 stands in front of recv on group '0'",
    }


def test_a_receive_from_anybody_takes_the_rank_that_sends() -> None:
    anybody = Operation("recv_any_source", "0", (0, 1, 2))
    operations = Operations()
    operations.has_ended(2, None)
    assert of(operations, {0: anybody}) == {}
    assert of(operations, {1: send(1, 0)}) == {0: "", 1: ""}
    assert "" not in of(operations, {0: anybody, 1: anybody}).values()


def test_once_cancelled_only_what_is_inside_of_a_call_begins() -> None:
    operations, inside = Operations(), Operation("allreduce", "0", (0, 1), inside=True)
    operations.stands(0, inside)
    operations.cancelled = True
    assert of(operations, {1: inside}) == {0: "", 1: ""}
    assert of(operations, {0: inside, 1: BARRIER}) == {1: "cancelled"}
    assert operations.decide() == {0: "rank 1 has ended the snippet without it (cancelled)"}


def test_once_cancelled_what_was_sent_ahead_is_still_received() -> None:
    operations = Operations()
    assert of(operations, {0: send(0, 1), 1: send(1, 0)}) == {0: "", 1: ""}
    operations.cancelled = True
    assert of(operations, {0: receive(0, 1)}) == {0: ""}
    assert of(operations, {0: send(0, 1), 1: receive(1, 0)}) == {0: "cancelled"}
    assert operations.decide() == {1: ""}


@dataclass
class Job:
    """Ranks that go through their programs as decide() lets them, in an order by chance."""

    programs: dict[int, list[Operation]]
    operations: Operations = field(default_factory=Operations)
    begun: Counter[tuple[int, str, str]] = field(default_factory=Counter)
    refused: set[int] = field(default_factory=set)

    def run(self, chance: random.Random) -> None:
        at = dict.fromkeys(self.programs, 0)
        while running := [r for r in self.programs if r not in self.operations.standing | self.operations.ended]:
            rank = chance.choice(running)
            if at[rank] == len(self.programs[rank]):
                self.operations.has_ended(rank, None)
            else:
                self.operations.stands(rank, self.programs[rank][at[rank]])
            while answers := self.operations.decide():
                for each, why_not in answers.items():
                    operation = self.programs[each][at[each]]
                    at[each] += 1
                    if why_not:
                        self.refused.add(each)
                        self.operations.has_ended(each, "RuntimeError")
                    else:
                        self.begun[each, operation.name, operation.group] += 1


@given(st.fixed_dictionaries({rank: st.lists(collectives, max_size=6) for rank in range(WORLD)}), st.randoms())
def test_no_collective_begins_on_some_ranks_only_and_no_rank_waits_for_ever(
    programs: dict[int, list[Operation]], chance: random.Random
) -> None:
    job = Job({rank: [each for each in mine if rank in each.ranks] for rank, mine in programs.items()})
    job.run(chance)
    assert not job.operations.standing and set(job.operations.ended) == set(programs)
    for (_, name, group), count in job.begun.items():
        assert {job.begun[rank, name, group] for rank in GROUPS[group]} == {count}


@given(st.lists(collectives, max_size=12), st.randoms())
def test_a_program_that_is_the_same_on_all_ranks_is_never_refused(
    program: list[Operation], chance: random.Random
) -> None:
    job = Job({rank: [each for each in program if rank in each.ranks] for rank in range(WORLD)})
    job.run(chance)
    assert not job.refused and job.begun.total() == sum(len(each.ranks) for each in program)
