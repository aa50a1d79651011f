"""The process that profiles one rank: it reads the rank's stacks and deposits them with its agent.

Started by `launch`, with its order on stdin; it ends at its time, when stdin is closed, or with the rank.  It faces no
network.  What it has done it writes to stdout, as JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import struct
import sys
import time
from collections.abc import Mapping
from typing import Any

from .. import protocol as wire
from ..client.client import Client
from ..client.deposits import deposited, in_parts
from ..client.endpoints import Address, address_of
from ..errors import ProbeError, SilentError
from ..host import agent_memory
from ..streams import GIL_UNKNOWN, HOLDS_GIL, PROFILE_NODES, PROFILE_SAMPLES, STREAMS
from .handed_over import handed_over
from .memory import memory_of
from .sampler import NOT_READ, Nodes, Sampler, without_ours

_REFRESH_S = 1.0
_DEPOSIT_S, _DEPOSIT_OF_STEPS_S = 0.5, 0.1  # which tells how far the steps are, too
_ANSWER_S = 10.0
_PATIENCE = 5  # with a rank that is to end steps, in usual steps of its
_MOST_BYTES = 2 << 20
_SAMPLE = struct.Struct(f"<{len(STREAMS[PROFILE_SAMPLES])}q")


class _Agent:
    """The agent of the rank, asked at its own socket, one request at a time."""

    def __init__(self, address: Address, by: str) -> None:
        """Raises SilentError."""
        self._client = Client()
        self._link = self._client.connect(address)
        self._link.welcome(self.ask(wire.HELLO, protocol=wire.PROTOCOL, role=self._client.role, by=by))
        self.name, self.step_ns = self._link.name, self._link.facts.step_ns or 0

    def ask(self, kind: str, *payload: bytes, **fields: Any) -> dict[str, Any]:
        """Its reply.  Raises AgentError, SilentError."""
        call = self._client.send(self._link, kind, *payload, **fields)
        if self._client.wait([call], time.monotonic() + _ANSWER_S):
            raise SilentError(f"{self._link.name} did not answer within {_ANSWER_S:g} s.")
        return call.result()


class Profiler:
    """run() until it is over.  order: as launch gives it."""

    def __init__(self, order: Mapping[str, Any]) -> None:
        self._order = order
        address = _address(order)
        self._agent = _Agent(address, order["by"])
        begun = self._agent.ask(wire.PROFILE, by=order["by"])
        self._first_count = self._steps = begun["count"]
        self._number = begun["next"][PROFILE_SAMPLES]
        self._nodes = Nodes(begun["next"][PROFILE_NODES])
        memory = memory_of(address.pid, begun["layout"]["interp"]) if address.pid else None
        if memory is None:
            memory = handed_over(address.url.removeprefix("ipc://"), wire.CONTROL, self._agent.name).memory
        self._sampler = Sampler(memory, begun["layout"])
        self._rows = bytearray()
        self.told = {"looks": 0, "samples": 0, "not_read": 0, "busy_s": 0.0}

    def run(self) -> dict[str, Any]:
        """Figures about the profile.  Raises ProbeError."""
        period, began = 1 / self._order["rate"], time.perf_counter()
        every = _DEPOSIT_OF_STEPS_S if self._order["steps"] else _DEPOSIT_S
        fresh, deposit, due = began + _REFRESH_S, began + every, began
        before_ns = self.told["start_ns"] = time.perf_counter_ns()
        while True:
            is_over = self._is_over(time.perf_counter() - began)
            now, now_ns = time.perf_counter(), time.perf_counter_ns()
            try:
                self._look(now_ns, now_ns - before_ns)
            except OSError:
                break  # the rank has ended
            before_ns = now_ns
            if is_over:
                break
            if now > fresh:
                self._sampler.refresh()
                fresh = now + _REFRESH_S
            if now > deposit or len(self._rows) > _MOST_BYTES:
                self._deposit()
                deposit = now + every
            after = time.perf_counter()
            self.told["busy_s"] += after - now
            due = max(due + period, after)
            # at random moments around the grid: the job may beat in time with it
            time.sleep(max(0.0, due + random.uniform(-0.5, 0.5) * period - time.perf_counter()))
        self.told["end_ns"] = before_ns  # of the last look: the weights add up to the time
        self._deposit()
        return self.told

    def _is_over(self, passed_s: float) -> bool:
        steps, over = self._order["steps"], self._steps - self._first_count
        if steps and over > steps:
            return True
        if steps and not over and passed_s > max(self._order["patience_s"], _PATIENCE * self._agent.step_ns / 1e9):
            hint = "Give --seconds instead of --steps."
            raise SilentError(f"{self._agent.name} has ended no step for {passed_s:.0f} s.", hint, "few-steps")
        ready, _, _ = select.select([sys.stdin], [], [], 0)
        return bool(passed_s >= self._order["seconds"] or ready)

    def _look(self, now_ns: int, weight_ns: int) -> None:
        self.told["looks"] += 1
        for thread, sample in self._sampler.look():
            frames = None if sample.stack is None else self._sampler.frames(sample.stack)
            if frames and not (frames := without_ours(frames)):  # the agent's thread
                continue
            node = NOT_READ if frames is None else self._nodes.number(frames)
            flags = GIL_UNKNOWN if sample.holds_gil is None else HOLDS_GIL if sample.holds_gil else 0
            self._rows += _SAMPLE.pack(now_ns, weight_ns, node, thread.ident, thread.native_id, flags, self._number)
            self._number += 1
            self.told["samples"] += 1
            self.told["not_read"] += node == NOT_READ

    def _deposit(self) -> None:
        for part in in_parts(self._nodes.names):
            stored = self._agent.ask(wire.DEPOSIT, b"", b"", names=[deposited(name) for name in part])
            self._nodes.learn(part, stored["ids"])
        self._nodes.names = []
        stored = self._agent.ask(wire.DEPOSIT, self._nodes.packed(), bytes(self._rows), names=[])
        self._rows = bytearray()
        self._steps = stored["count"]


def _address(order: Mapping[str, Any]) -> Address:
    """Of the agent.  Raises SilentError."""
    if not order["pid"]:
        return Address(order["url"])
    facts = agent_memory.facts(order["pid"])
    if facts is None:
        raise SilentError(f"Process {order['pid']} has ended, or was detached.", code="gone")
    return address_of(order["pid"], facts)


def main() -> None:
    """Of the process that launch starts.  A command that has gone meanwhile is told nothing."""
    order = json.loads(sys.stdin.readline())
    try:
        told = Profiler(order).run()
    except ProbeError as error:
        told = {"error": {"code": error.code, "message": error.message, "hint": error.hint}}
    with contextlib.suppress(OSError):
        print(json.dumps(told), flush=True)
    os._exit(0)
