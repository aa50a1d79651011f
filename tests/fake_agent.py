"""An agent without a job: real rings, log and server thread of the agent, rows that the test appends.

Used by the tests of the reader.  Requests of `deaf` kinds, or for rows of `deaf` streams, are taken and
never answered.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from probe import protocol as wire
from probe.agent.inspect.frames import named
from probe.agent.inspect.interpreter_layout import interpreter_layout
from probe.agent.serve.listening import Listener
from probe.agent.serve.own_memory import OwnMemory
from probe.agent.serve.server import Key, Refused, Server
from probe.agent.steps.sampling import Sampling
from probe.agent.storage.header import Header
from probe.agent.storage.log import Log
from probe.agent.storage.rows import Stream
from probe.client.endpoints import Address, Resolved
from probe.host.facts import Facts
from probe.host.processes import boot_id, start_ticks
from probe.snapshot import live_stacks
from probe.snapshot.stacks import Frame, Thread
from probe.streams import (
    BEGIN,
    COLLECTIVES,
    END,
    ENGINE,
    FORWARD,
    LOADS,
    LOG_GROUP,
    LOG_LOADER,
    LOG_MODULE,
    LOG_OPTIMIZER,
    LOG_THREAD,
    MARKS,
    ON_DEMAND,
    OPTIMIZER,
    PROCESS,
    SAMPLED,
    SAMPLES,
    SPANS,
    STEPS,
    STREAMS,
)
from probe.tables.declaration import TAPS

THREAD, MAIN = 7, threading.main_thread()
LINEAR, MODEL, ADAM, LOADER = 1001, 1002, 1003, 1004


class FakeAgent:
    """One rank; close() it.  spans(), marks(), … append rows as a tap would."""

    def __init__(
        self,
        folder: Path,
        rank: int = 0,
        world_size: int = 1,
        uid: int | None = None,
        ring_bytes: int = 1 << 20,
        **facts: Any,
    ) -> None:
        self.rank, self.deaf = rank, set[str]()
        self.armed: Key | None = None
        self.ran_at: list[int] = []
        self.on_go: Callable[[FakeAgent, Key, int], None] = is_ready
        self.on_run: Callable[[FakeAgent, Key, int], None] = run_snippet
        self.on_pass: Callable[[FakeAgent, Key, dict[str, Any]], None] = lambda *request: None
        self.target = -1
        self.requests: list[dict[str, Any]] = []
        self.streams = {
            name: Stream(name, slots, ring_bytes) for name, slots in STREAMS.items() if name not in ON_DEMAND
        }
        self.log, self.header = Log(), Header()
        path = folder / f"{rank}-{time.monotonic_ns()}.sock"
        self.path = str(path)
        self.facts: dict[str, Any] = {
            "agent": "0", "protocol": wire.PROTOCOL, "pid": os.getpid(), "start_ticks": start_ticks(os.getpid()),
            "host": "here", "rank": rank, "world_size": world_size, "python": "3.11.7", "torch": "2.13.0",
            "attached_ns": time.monotonic_ns(), "attached_wall_ns": time.time_ns(), "endpoint": f"ipc://{path}",
            "streams": {name: {"slots": list(s.slots), "chunks": s.chunks} for name, s in self.streams.items()},
            "step_base": 0, "step_source": "attach", "count": 0, "anchor": None, "step_ns": None, "last_step_ns": None,
            "step_ends": "call", "collectives_ns": 0,
            "taps": {tap.name: "on" for tap in TAPS if tap.name != "device"},  # its job does not use CUDA
            "boot_id": boot_id(), "id": os.urandom(8).hex(), "sampling": Sampling().settings(), **facts,
        }  # fmt: skip
        self.server = Server(Listener(str(path)), {os.getuid() if uid is None else uid})
        self.handlers = {
            wire.HELLO: self._hello, wire.SNAPSHOT: self._snapshot, wire.SCAN: self._scan, wire.LOG: self._log,
            wire.ALIGN: self._align, wire.DETACH: self._detach, wire.ARM: self._arm, wire.GO: self._go,
            wire.RUN: self._run, wire.STAY: lambda *request: None, wire.SET: self._set,
            wire.TENSORS: self._tensors,
            wire.HISTORY: self._history,
            wire.PASS: self._pass,
        }  # fmt: skip
        self.server.on_cancel = self._cancelled
        layouts: Any = SimpleNamespace(found_layout=interpreter_layout)
        OwnMemory(self.server, layouts, {MAIN.ident or 0: named(MAIN, True)})
        for kind in (wire.CANCEL, wire.MEMORY):
            self.handlers[kind] = self.server.handlers[kind]
        for kind, handler in self.handlers.items():
            self.server.handlers[kind] = self._unless_deaf(handler)
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        self.publish()

    def close(self) -> None:
        self.server.stop()
        self.thread.join()
        self.server.close()
        for part in (*self.streams.values(), self.log, self.header):
            part.close()

    def publish(self) -> None:
        self.log.write()
        self.header.write(self.now())

    def now(self) -> dict[str, Any]:
        return {**self.facts, "monotonic_ns": time.monotonic_ns(), "wall_ns": time.time_ns()}

    def send(self, key: Key, frames: list[bytes]) -> None:
        """What a handler answers, as it is: not all of it need be a reply."""
        self.server.connections.send(key[0], [key[1], *frames])

    # ---- what a job would do

    def put(self, kind: int, id: int, **payload: Any) -> None:
        self.log.put(kind, id, payload)

    def span(self, start: int, end: int, subject: int = MODEL, kind: int = FORWARD, thread: int = THREAD) -> None:
        self.streams[SPANS].append(start, end, subject, thread, kind)

    def mark(self, at: int, subject: int, kind: int, thread: int = THREAD) -> None:
        self.streams[MARKS].append(at, subject, thread, kind)

    def sample(self, at: int, *readings: tuple[int, int], source: int = PROCESS) -> None:
        for counter, value in readings:
            self.streams[SAMPLES].append(at, source, counter, value)

    def load(self, start: int, end: int, ready: int = -1, outstanding: int = -1, flags: int = 0) -> None:
        self.streams[LOADS].append(start, end, LOADER, ready, outstanding, THREAD, flags)

    def boundary(
        self, at: int, group_seq: int = -1, flags: int = SAMPLED, rss_bytes: int = 0, samples: int = 0
    ) -> None:
        count = self.facts["count"]
        self.streams[STEPS].append(at, count, group_seq, ADAM, rss_bytes, samples, THREAD, flags)
        self.facts["count"] += 1
        self.facts["anchor"], self.facts["last_step_ns"] = "AdamW", at

    def operate(
        self, start: int, issued: int, done: int, flags: int = 0, by: str = "user", group: int = 1, thread: int = THREAD
    ) -> None:
        """An all_reduce; name_modules() has told of group 1."""
        kind, source = self.log.string("c10d::allreduce_"), self.log.string(by)
        self.streams[COLLECTIVES].append(start, issued, done, kind, group, 0, -1, 64, 0, source, thread, flags)

    def name_modules(self) -> None:
        self.put(LOG_MODULE, MODEL, name="Model", type="Model", parent=0, root=MODEL)
        self.put(LOG_MODULE, LINEAR, name="linear", type="Linear", parent=MODEL, root=MODEL)
        self.put(LOG_OPTIMIZER, ADAM, name="AdamW", type="AdamW")
        fields = {"num_workers": 2, "pin_memory": False, "prefetch_factor": 2, "batch_size": 8}
        self.put(LOG_LOADER, LOADER, name="loader", **fields)
        self.put(LOG_THREAD, THREAD, native_id=4242, name="MainThread", is_main=True)
        self.put(LOG_GROUP, 1, name="0", backend="gloo", size=1, rank=0, ranks=[0])

    def train(self, steps: int, start: int = 0, group_seq: int = -1, unit: int = 1) -> int:
        """Steps of 1,000 units: forward 0-300 (linear 100-200), backward 400-700 (linear 500-600), step 800-900."""
        for _ in range(steps):
            self.span(start + 100 * unit, start + 200 * unit, LINEAR)
            self.span(start, start + 300 * unit, MODEL)
            self.mark(start + 450 * unit, MODEL, BEGIN)
            self.mark(start + 500 * unit, LINEAR, BEGIN)
            self.mark(start + 600 * unit, LINEAR, END)
            self.span(start + 400 * unit, start + 700 * unit, 0, ENGINE)
            self.span(start + 800 * unit, start + 900 * unit, ADAM, OPTIMIZER)
            self.boundary(start + 890 * unit, group_seq)
            start += 1000 * unit
            group_seq += group_seq >= 0
        return start

    # ---- the wire

    def _unless_deaf(self, handler: Any) -> Any:
        def handle(key: Key, request: dict[str, Any], payload: Any) -> None:
            self.requests.append(request)
            if {request["kind"], request.get("stream")}.isdisjoint(self.deaf - {wire.CANCEL}):
                handler(key, request, payload)

        return handle

    def _hello(self, key: Key, request: dict[str, Any], payload: Any) -> None:
        if request["protocol"] != self.facts["protocol"]:
            raise Refused("protocol", f"this agent speaks protocol {self.facts['protocol']}")
        self.server.reply(key, wire.WELCOME, facts=self.now(), role=key[0].role)

    def _snapshot(self, key: Key, request: dict[str, Any], payload: Any) -> None:
        self.publish()
        at = {name: stream.position() for name, stream in self.streams.items()}
        self.server.reply(key, wire.AT, streams=at, log=self.log.committed, facts=self.now())

    def _scan(self, key: Key, request: dict[str, Any], payload: Any) -> None:
        stream, template = self.streams[request["stream"]], bytearray(payload[0])

        def messages() -> Any:
            first, last = request["first"], min(request["last"], stream.position())
            first = stream.since(first, last, *request["since"]) if request.get("since") else first
            for number, rows in stream.read(first, last, wire.ROWS_A_MESSAGE):
                count = len(rows) // stream.row_bytes
                for offset, multiplier in request["patch"]:
                    template[offset : offset + 8] = (count * multiplier).to_bytes(8, "little")
                yield count, [wire.encode(wire.ROWS, first=number, rows=count), bytes(template), bytes(rows)]

        self.server.stream(key, request["credit"], messages())

    def _log(self, key: Key, request: dict[str, Any], payload: Any) -> None:
        data = bytes(self.log.read(request["first"], request["last"]))
        self.server.stream(key, request["credit"], iter([(len(data), [wire.encode(wire.LOG, first=0), data])]))

    def _align(self, key: Key, request: dict[str, Any], payload: Any) -> None:
        self.facts["step_base"], self.facts["step_source"] = request["base"], request["source"]
        self.server.reply(key, wire.END, rows=0)

    def _detach(self, key: Key, request: dict[str, Any], payload: Any) -> None:
        self.server.reply(key, wire.DETACHED, left=["a callback"])

    def _tensors(self, key: Key, request: dict[str, Any], payload: Any) -> None:
        """Two storages: a parameter, and a loss that is kept."""
        rows = [
            (0, "parameter", "fc", None, None, [4, 8], "float32", "cpu", 128, 1),
            (1, "variable", None, None, None, [], "float32", "cpu", 4, 2),
        ]
        self.server.reply(
            key, wire.LISTED, storages=dict(zip(wire.LISTED_COLUMNS, map(list, zip(*rows, strict=True)), strict=True)),
            places=[[-1, "model"], [-1, "train().losses[*]"]], left_storages=0, left_bytes={}, unseen=[], walked=9,
            malloc=None, allocated={}, at_boundary=True, count=self.facts["count"], held_ns=[1000],
        )  # fmt: skip

    def _history(self, key: Key, request: dict[str, Any], payload: Any) -> None:
        self.server.reply(key, wire.PAST, packed="", wall_offset_ns=0)

    def _set(self, key: Key, request: dict[str, Any], payload: Any) -> None:
        self.server.reply(key, wire.SETTINGS, settings=request["settings"])

    def _arm(self, key: Key, request: dict[str, Any], payload: Any) -> None:
        self.armed = key
        last = self.facts["last_step_ns"]
        waiting = None if last is None else (time.monotonic_ns() - last) / 1e9
        fields = {"count": self.facts["count"], "base": self.facts["step_base"], "step_ns": self.facts["step_ns"]}
        self.server.reply(key, wire.ARMED, **fields, waiting=waiting)

    def _go(self, key: Key, request: dict[str, Any], payload: Any) -> None:
        assert self.armed == (key[0], request["of"].encode())
        self.target = request["count"]
        (self.on_run if self.target < 0 else self.on_go)(self, self.armed, self.target)

    def _run(self, key: Key, request: dict[str, Any], payload: Any) -> None:
        assert self.armed == (key[0], request["of"].encode())
        self.on_run(self, self.armed, self.target)

    def _pass(self, key: Key, request: dict[str, Any], payload: Any) -> None:
        assert self.armed == (key[0], request["of"].encode())
        self.on_pass(self, self.armed, request)

    def _cancelled(self, key: Key) -> None:
        if self.armed == key and wire.CANCEL not in self.deaf:
            self.armed = None
            self.server.reply(key, wire.ERROR, code="interrupted", message="cancelled before it ran")


def stand(monkeypatch: pytest.MonkeyPatch, stacks: Mapping[FakeAgent, Callable[[], Sequence[Frame]]]) -> None:
    """Have the main threads of these agents stand there, each time that they are looked at."""

    def found(url: str, *_: Any) -> list[Thread]:
        frames = next(frames for agent, frames in stacks.items() if url.endswith(agent.path))
        return [Thread(1, 1, "MainThread", True, tuple(frames()))]

    monkeypatch.setattr(live_stacks, "handed_stacks", found)


def is_ready(agent: FakeAgent, key: Key, count: int) -> None:
    """As if the boundary had come at once."""
    agent.server.reply(key, wire.READY)


def run_snippet(agent: FakeAgent, key: Key, count: int) -> None:
    """As if the boundary had come at once and the snippet printed its rank."""
    agent.ran_at.append(count)
    agent.armed = None
    agent.server.reply(key, wire.OUT, stream="stdout", text=f"rank {agent.rank}\n")
    count = agent.facts["count"] if count < 0 else count
    fields = {"error": None, "traceback": None, "held_ns": 5_000_000, "changed": [], "dropped_bytes": 0}
    agent.server.reply(key, wire.DONE, ok=True, echo="42", count=count, **fields)


def resolved(*agents: FakeAgent) -> Resolved:
    return Resolved("fake", [Address(agent.server.endpoint, os.getpid(), Facts.parse(agent.now())) for agent in agents])
