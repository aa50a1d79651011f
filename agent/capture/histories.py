"""Takes a history of the device's allocator through its life: it waits for a boundary, is on, is over and packed.

Lives on the agent's thread; it begins on the training thread, ends there after so many steps or on the agent's thread
after so many seconds, and is packed by a thread of its own.  A client is known by the id that it has given its history,
and asks for it again and again.  Invariant: one at a time; whatever ends it, exactly one thread switches it off; the
last one stays, packed, until detach.
"""

from __future__ import annotations

import base64
import time
from _thread import start_new_thread
from collections.abc import Mapping
from time import perf_counter_ns
from typing import Any

from ... import protocol as wire
from ..boundary.boundary import Boundary, Ticket
from ..fault import in_words
from ..serve.server import Key, Refused, Server
from ..steps.step_count import Steps
from .allocator_history import AllocatorHistory, packed, why_none

_MOST_ENTRIES, _MOST_STEPS, _MOST_S = 200_000, 1000, 120.0
_ID_CHARACTERS = 64
_WAIT_S = 30.0  # for the boundary at which it begins
_SILENT_S = 5.0  # after which a client is gone that asks no more; it asks four times a second
_LOOK_S = 0.1


class _History:
    """One, from the request on.  why: it ended early, fault: there is none, both in words."""

    def __init__(self, id: str, steps: int, seconds: float, recording: AllocatorHistory) -> None:
        self.id, self.steps, self.seconds, self.recording = id, steps, seconds, recording
        self.asked = self.heard = time.monotonic()
        self.ticket: Ticket | None = None
        self.start_ns = self.end_ns = self.count = self.done = self.held_ns = 0
        self.why = self.fault = ""
        self.is_over = False
        self._claims = [None]

    def claim(self) -> bool:
        """True for exactly one caller among all threads: the one that ends it."""
        try:
            self._claims.pop()
        except IndexError:
            return False
        return True

    @property
    def is_open(self) -> bool:
        """Whether nobody has ended it."""
        return bool(self._claims)

    def told(self) -> dict[str, Any]:
        return {
            "over": self.is_over, "why": self.why, "fault": self.fault, "start_ns": self.start_ns,
            "end_ns": self.end_ns, "count": self.count, "steps": self.done, "held_ns": self.held_ns,
        }  # fmt: skip


class Histories:
    """tick() and the handlers on the agent's thread, close() on any other, forget() in a forked child."""

    def __init__(self, server: Server, boundary: Boundary, steps: Steps) -> None:
        self._server, self._boundary, self._steps = server, boundary, steps
        self._history: _History | None = None
        self._packed: dict[str, Any] = {"packed": "", "wall_offset_ns": 0}
        self._is_closed = False
        server.handlers |= {wire.RECORD: self._record, wire.HISTORY: self._send}

    # ---- requests

    def _record(self, key: Key, request: dict[str, Any], payload: Any) -> None:
        """Begin one, end it, or just tell how it is, which keeps it."""
        id = str(request["id"])[:_ID_CHARACTERS]
        if (order := request.get("order")) is not None:
            self._arm(id, order)
        history = self._history
        if history is None or history.id != id:
            raise Refused("protocol", "no such history has begun")
        history.heard = time.monotonic()
        if request.get("stop"):
            self._drop(history, "its command has ended")
        self._server.reply(key, wire.RECORDED, **history.told())

    def _send(self, key: Key, request: dict[str, Any], payload: Any) -> None:
        self._server.reply(key, wire.PAST, **self._packed)

    def _arm(self, id: str, order: Mapping[str, Any]) -> None:
        steps, seconds, entries = int(order["steps"]), float(order["seconds"]), int(order["entries"])
        if not (0 <= steps <= _MOST_STEPS and 0 < seconds <= _MOST_S and 0 < entries <= _MOST_ENTRIES):
            raise Refused("protocol", f"at most {_MOST_STEPS} steps, {_MOST_S:.0f} s, {_MOST_ENTRIES} entries")
        if self._is_closed or (self._history is not None and not self._history.is_over):
            raise Refused("recorded", "another command is recording its allocator. Wait until that ends.")
        if why := why_none():
            raise Refused("no-history", f"the history of its allocator cannot be recorded: {why}.")
        recording = AllocatorHistory(entries, bool(order["stacks"]), self._job_begins)
        history = self._history = _History(id, steps, seconds, recording)
        history.ticket = self._boundary.request(lambda frame: self._begin(history))

    # ---- the training thread

    def _begin(self, history: _History) -> None:
        if why := why_none():
            self._drop(history, why)
            return
        try:
            history.recording.start()
        except Exception as error:
            self._drop(history, f"torch did not begin: {in_words(error)}")
            raise
        history.start_ns, history.count = perf_counter_ns(), self._steps.count
        if not history.is_open:  # ended by another thread meanwhile
            history.recording.stop()
        elif history.steps:
            last = history.count + history.steps
            history.ticket = self._boundary.request(lambda frame: self._end(history), last, lambda: self._end(history))
        self._server.tick_soon()

    def _job_begins(self) -> None:
        """The job is about to record its allocator itself, on whatever thread."""
        history = self._history
        if history is not None:
            history.recording.stop()
            self._drop(history, "the job began to record it itself")

    # ---- its end, on any thread

    def _end(self, history: _History, why: str = "") -> None:
        """With what it holds."""
        if not history.claim():
            return
        history.why, history.fault, history.end_ns = why, "torch made no snapshot of it", perf_counter_ns()
        history.done = self._steps.count - history.count
        try:
            snapshot = history.recording.snapshot()
            history.fault = ""
        finally:
            history.recording.stop()
            history.held_ns = perf_counter_ns() - history.end_ns
            history.is_over = bool(history.fault)
        try:
            start_new_thread(self._pack, (history, snapshot, time.time_ns() - perf_counter_ns()))
        except RuntimeError as error:  # the system has no thread left
            history.fault, history.is_over = f"it could not be packed: {error}", True

    def _pack(self, history: _History, snapshot: dict[str, Any], wall_offset_ns: int) -> None:
        try:
            text = base64.b64encode(packed(snapshot, lambda: self._is_closed)).decode()
            if not self._is_closed:
                self._packed = {"packed": text, "wall_offset_ns": wall_offset_ns}
        except Exception as error:
            history.fault = f"torch's snapshot could not be packed: {in_words(error)}"
        history.is_over = True
        self._server.tick_soon()

    def _drop(self, history: _History, why: str) -> None:
        """Without what it holds."""
        if not history.claim():
            return
        if history.ticket is not None:
            history.ticket.cancel()
        history.recording.stop()
        history.fault, history.is_over = why, True

    # ---- the agent

    def tick(self) -> float:
        """Seconds until the next call is due."""
        history, now = self._history, time.monotonic()
        if history is None or not history.is_open:
            return 1.0
        on_s = (perf_counter_ns() - history.start_ns) / 1e9 if history.start_ns else 0.0
        if now - history.heard > _SILENT_S:
            self._drop(history, "its command has ended")
        elif not history.start_ns and now - history.asked > _WAIT_S:
            self._drop(history, f"no step has ended for {_WAIT_S:.0f} s, so it did not begin")
        elif on_s > history.seconds:
            why = f"{history.steps} steps took more than {history.seconds:.0f} s" if history.steps else ""
            self._end(history, why)
        return _LOOK_S

    def close(self) -> None:
        self._is_closed = True
        history, self._history = self._history, None
        if history is not None:
            self._drop(history, "the agent is being detached")
        self._packed = {}

    def forget(self) -> None:
        """In a forked child, which cannot use the device: nothing of ours stays in torch."""
        if self._history is not None:
            self._history.recording.guard.remove()
