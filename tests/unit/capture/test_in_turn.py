"""Traces of many ranks are fetched and deposited one after the other, which takes long."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from fake_agent import FakeAgent, Key

from probe import protocol as wire
from probe.capture import depositor
from probe.capture.trace import Trace
from probe.client.client import Client
from probe.connection import Connection
from probe.streams import KERNELS, OPERATORS

TRACE = json.dumps({"baseTimeNanoseconds": 0, "traceEvents": []}).encode()
TURN_S, GONE_S = 35.0, 120.0  # that one takes; after which an agent takes its client for gone


class Clock:
    def __init__(self) -> None:
        self.ahead_s = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead_s

    def passes(self) -> None:
        self.ahead_s += TURN_S


class Captured:
    """A rank that was captured; silent_s: for so long, by this clock, it has not heard of its client at most."""

    def __init__(self, agent: FakeAgent, clock: Clock) -> None:
        self._server, self._clock = agent.server, clock
        self._has_trace, self._heard = True, clock.monotonic()
        self.silent_s = 0.0
        agent.on_run = lambda agent, key, count: agent.server.reply(
            key, wire.DONE, ok=True, echo="{}", count=7, held_ns=5, changed=[], dropped_bytes=0
        )
        agent.server.handlers |= {wire.CAPTURE: self._watch, wire.EVENTS: self._send, wire.KEEP: self._keep}

    def _hear(self) -> None:
        now = self._clock.monotonic()
        self.silent_s, self._heard = max(self.silent_s, now - self._heard), now

    def _watch(self, key: Key, request: dict[str, Any], payload: Any) -> None:
        self._hear()
        zeros = dict.fromkeys(("start_ns", "end_ns", "wall_offset_ns", "begin_ns", "stop_ns", "export_ns",
                               "grown_bytes"), 0)  # fmt: skip
        self._server.reply(
            key, wire.CAPTURED, why="", next={OPERATORS: 1, KERNELS: 1}, count=7, steps=1, bytes=len(TRACE), threads=1,
            cuda=False, cpu=None, **zeros,
        )  # fmt: skip

    def _send(self, key: Key, request: dict[str, Any], payload: Any) -> None:
        self._hear()
        assert self._has_trace, "it was freed before it was fetched"
        piece = TRACE[: request["last"]]
        if piece:
            self._clock.passes()
        messages = [(len(piece), [wire.encode(wire.EVENTS, first=0), piece])] if piece else []
        self._server.stream(key, request["credit"], iter(messages))

    def _keep(self, key: Key, request: dict[str, Any], payload: Any) -> None:
        self._hear()
        self._has_trace = False
        self._server.reply(key, wire.STORED, ids=[0 for _ in request["names"]], count=7)


def test_every_rank_hears_of_the_command_while_others_have_their_turn(
    agent: Callable[..., FakeAgent], connected: Callable[..., Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, parse = Clock(), Trace.parse

    def parsed(*args: Any) -> Trace:
        clock.passes()
        return parse(*args)

    monkeypatch.setattr(depositor, "time", SimpleNamespace(monotonic=clock.monotonic))
    monkeypatch.setattr(Trace, "parse", parsed)
    # The clock runs ahead of threads: what is sent is heard before it goes on.
    monkeypatch.setattr(Client, "forget", lambda self, calls: self.wait([*calls], time.monotonic() + 30.0))
    agents = [agent(rank, world_size=5) for rank in range(5)]
    captured = [Captured(each, clock) for each in agents]
    for each in agents:
        for step in range(3):
            each.boundary(0, step)
        each.facts.update(step_ns=10_000_000, last_step_ns=time.monotonic_ns(), distributed=True)
    assert [each.rank for each in connected(*agents).capture(1)] == [0, 1, 2, 3, 4]
    assert clock.ahead_s == 10 * TURN_S
    assert max(each.silent_s for each in captured) < GONE_S
