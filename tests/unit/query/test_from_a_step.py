"""Rows of the steps from one on are what they are among all rows, wherever it lies and whatever the rings have lost."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from fake_agent import ADAM, FakeAgent
from uneven import MS, forward_and_backward, train

from probe.connection import Connection
from probe.query.database import Database
from probe.streams import ITERATOR, LOADS, OPTIMIZER, SAMPLED, SPANS
from probe.tables import TABLES

pytestmark = pytest.mark.slow

BY_STEP = [table for table in TABLES if table.by_step]
Make = Callable[..., FakeAgent]
Connect = Callable[..., Connection]


def sparse(agent: FakeAgent, chance: random.Random, steps: int) -> None:
    """Batches, passes and collectives in a few steps alone, some sampled and some not."""
    took, at = partial(chance.randint, 1 * MS, 20 * MS), 10 * MS
    for step in range(steps):
        if step % 85 == 3:
            agent.load(at - 9 * MS, at - MS, flags=ITERATOR)
        if step % 17 == 3:
            agent.load(at, at + took())
        at += 25 * MS
        if step % 6 < 4:
            at = forward_and_backward(agent, at, took)
        if step % 23 == 5:
            agent.operate(at, at + MS // 10, at + took())
        if step % 50 == 7:  # one that nobody waits for yet, for some 30 steps
            agent.operate(at, at + MS // 10, at + 3000 * MS)
        agent.span(at + 21 * MS, at + 30 * MS, ADAM, OPTIMIZER)
        agent.boundary(at + 29 * MS, group_seq=step // 23, flags=SAMPLED if step % 12 < 8 else 0)
        at += 31 * MS + took()
    agent.now = lambda: {**agent.facts, "monotonic_ns": at, "wall_ns": 10**18}  # type: ignore[method-assign]


@pytest.mark.parametrize("steps", [200, 6000], ids=["all is there", "the first steps are lost"])
@pytest.mark.parametrize("kind", ["uneven", "sparse"])
@pytest.mark.parametrize("table", BY_STEP, ids=lambda table: str(table.name))
def test_rows_from_a_step_on(agent: Make, connected: Connect, table: Any, kind: str, steps: int) -> None:
    one, chance = agent(ring_bytes=1 << 16), random.Random(steps)
    train(one, chance, steps if kind == "uneven" else 0)
    if kind == "sparse":
        sparse(one, chance, steps)
    else:
        one.now = lambda: {**one.facts, "monotonic_ns": steps * 1000 * MS, "wall_ns": 10**18}  # type: ignore[method-assign]
    with connected(one) as connection:
        connection.query("SELECT 1")
        plain = Database(TABLES)
        everything = plain.run(f"SELECT * FROM {table.name}", connection.snapshot(), pruned=False)
        plain.close()
        assert (connection.snapshot().ranks[0].rows(SPANS)["seq"][0] > 1) == (steps > 1000)
        assert len(connection.snapshot().ranks[0].rows(LOADS))
    all_steps = everything["step"].to_numpy()
    for first in {*range(steps - 16, steps, 5), *chance.sample(range(min(all_steps, default=1), steps), 5)}:
        within = f"step >= {first} AND step < {first + 12}"
        with connected(one) as connection:
            told = {*map(repr, connection.query(f"SELECT * FROM {table.name} WHERE {within}").to_pylist())}
        wanted = {*map(repr, everything.filter((all_steps >= first) & (all_steps < first + 12)).to_pylist())}
        assert not wanted ^ told, (first, sorted(wanted - told)[:3], sorted(told - wanted)[:3])
