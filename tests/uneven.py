"""Uneven steps for a fake agent: blocks that nest, a second pass now and then, loads, collectives that may overlap."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

from fake_agent import ADAM, LINEAR, MODEL, FakeAgent

from probe.streams import BEGIN, BLOCKING, END, ENGINE, LOG_GROUP, LOG_MODULE, OPTIMIZER, SAMPLED, WAIT

MS = 1_000_000
STEPS = 40
BLOCKS = {2001: "block0", 2002: "block1", 2003: "block1.norm"}
NOW = STEPS * 1000 * MS


def train(agent: FakeAgent, chance: random.Random, steps: int = STEPS) -> None:
    agent.name_modules()
    for serial, name in BLOCKS.items():
        agent.put(LOG_MODULE, serial, name=name, type=name[:5].title(), parent=MODEL, root=MODEL)
    agent.put(LOG_GROUP, 1, name="0", backend="gloo", size=3, rank=agent.rank, ranks=[0, 1, 2])
    at = 10 * MS
    for step in range(steps):
        took = partial(chance.randint, 1 * MS, 20 * MS)
        agent.load(at, at + took())
        at += 25 * MS
        for _ in range(1 + (step % 9 == 4)):
            at = forward_and_backward(agent, at, took)
        agent.operate(at, at + MS // 10, at + took() if step < steps - 1 or agent.rank else 0)
        agent.span(at + 21 * MS, at + 30 * MS, ADAM, OPTIMIZER)
        agent.boundary(at + 29 * MS, group_seq=step, flags=SAMPLED if step not in (11, 12, 13) else 0)
        at += 31 * MS + took()


def forward_and_backward(agent: FakeAgent, at: int, took: Callable[[], int]) -> int:
    begin = at
    for serial in (2001, 2003, 2002):
        start, at = at + MS, at + MS + took()
        if serial == 2002:  # around the norm before it
            start = start - MS // 2
        agent.span(start, at, serial)
        agent.operate(start + MS // 4, start + MS // 3, start + MS // 2, flags=BLOCKING if serial == 2002 else 0)
        agent.span(at - MS // 9, at - MS // 10, 0, WAIT)
    agent.span(at, at + MS, LINEAR)
    agent.span(begin, at + 2 * MS, MODEL)
    start = at = at + 3 * MS
    agent.mark(at, MODEL, BEGIN)
    for serial in (LINEAR, 2002, 2001):
        agent.mark(at + MS, serial, BEGIN)
        at += MS + took()
        agent.mark(at, serial, END)
    agent.operate(start + MS, start + MS + MS // 8, at + MS // 2, by="ddp")
    agent.span(start - MS // 2, at + MS, 0, ENGINE)
    return at + 2 * MS
