"""Answers a request for all tensors: has a look taken at the next boundary, or at once where none comes in time.

ask() and tick() on the agent's thread, the look on the training thread.  Invariant: every request ends in one reply;
looks that are asked for together are one; of a look only plain data is kept, packed, to be compared with the next.
"""

from __future__ import annotations

import json
import time
import zlib
from typing import Any

from ... import protocol as wire
from ..boundary.boundary import Boundary, Ticket
from ..fault import in_words
from ..serve.server import Key, Refused, Server
from ..steps.step_count import Steps
from ..torch_state import torch_is_imported
from .look import Look
from .malloc import malloc_bytes

_WAIT_S, _MOST_WAIT_S = 5.0, 600.0  # for a boundary
_MOST_WAITING = 64
_NOTHING: dict[str, Any] = {
    "storages": {name: [] for name in wire.LISTED_COLUMNS}, "places": [], "left_storages": 0, "left_bytes": {},
    "unseen": [wire.UNSEEN_TORCH], "walked": 0, "malloc": None, "allocated": {}, "at_boundary": False, "held_ns": [],
}  # fmt: skip


class _Request:
    """One request, until it is answered."""

    def __init__(self, key: Key, ends: float, compares: bool) -> None:
        self.key, self.ends, self.compares = key, ends, compares


class Tensors:
    """ask() takes a request, as the server's handler; tick() answers it once a look was taken."""

    def __init__(self, server: Server, boundary: Boundary, steps: Steps) -> None:
        self._server, self._boundary, self._steps = server, boundary, steps
        self._waiting: list[_Request] = []
        self._ticket: Ticket | None = None
        self._look: Look | None = None  # that has begun
        self._held_ns: list[int] = []  # how long each of its pieces took
        self._malloc: int | None = None
        self._count = 0  # boundaries since the attach, when it listed the tensors
        self._taken: dict[str, Any] | None = None  # what a look has found, until it is told
        self._failed = ""
        self._before = b""  # the last look, packed
        server.handlers[wire.TENSORS] = self.ask

    def ask(self, key: Key, request: dict[str, Any], payload: Any) -> None:
        if len(self._waiting) >= _MOST_WAITING:
            raise Refused("agent", "too many clients wait for a look already")
        wait_s = min(float(request.get("wait_s", _WAIT_S)), _MOST_WAIT_S)
        self._waiting.append(_Request(key, time.monotonic() + wait_s, bool(request.get("compare"))))
        if not torch_is_imported():
            self._taken = {**_NOTHING, "count": self._steps.count}
        elif self._ticket is None and wait_s > 0:
            self._ticket = self._boundary.request(self._look_at)
        self._server.tick_soon()

    def tick(self) -> float:
        """Tell what was found; look at once if no boundary has come in time.  Returns seconds until that is due."""
        now = time.monotonic()
        is_late = not self._is_over and any(each.ends <= now for each in self._waiting)
        if is_late and (self._ticket is None or self._ticket.cancel()):  # else it runs at this moment
            self._come_to_an_end()
        if self._is_over:
            self._tell()
        return max(0.01, min((each.ends - now for each in self._waiting), default=1.0))

    def _come_to_an_end(self) -> None:
        """No boundary comes: tell what the pieces of a look have found so far, or look at once."""
        if self._look is not None:
            self._end_with(self._look, True)
        else:
            self._look_at(None)

    @property
    def _is_over(self) -> bool:
        return self._taken is not None or bool(self._failed)

    def forget(self) -> None:
        """In a forked child."""
        if self._look is not None:
            self._look.resume_gc()

    def _look_at(self, frame: Any) -> None:
        """One piece: on the training thread, in the driving loop's frame; or on the agent's thread, without one."""
        begun = time.perf_counter_ns()
        try:
            if self._look is None:
                self._look, self._held_ns, self._malloc = Look(), [], malloc_bytes()
            if self._look.is_listing:
                self._count = self._steps.count
            done = self._look.piece(frame) or (frame is None and self._look.piece(frame))
            self._held_ns.append(time.perf_counter_ns() - begun)
            if done:
                self._end_with(self._look, frame is not None)
            elif frame is not None:
                self._ticket = self._boundary.request(self._look_at)
        except Exception as error:
            self._failed = f"the look failed: {in_words(error)}"
            raise  # the boundary tells what a signal handler of the job raised from what is ours
        finally:
            self._server.tick_soon()

    def _end_with(self, look: Look, at_boundary: bool) -> None:
        where = {"at_boundary": at_boundary, "count": self._count}
        self._taken = {**look.told(), **where, "malloc": self._malloc, "held_ns": self._held_ns}

    def _tell(self) -> None:
        taken, self._taken = self._taken, None
        failed, self._failed = self._failed, ""
        self._look = self._ticket = None
        waiting, self._waiting = self._waiting, []
        before = json.loads(zlib.decompress(self._before)) if self._before else None
        for each in waiting:
            if taken is None:
                self._server.post(each.key, wire.ERROR, code="agent", message=failed)
                continue
            if each.compares and before is not None:
                self._server.post(each.key, wire.BEFORE, **before)
            self._server.post(each.key, wire.LISTED, **taken)
        if taken is not None:
            self._before = zlib.compress(json.dumps(taken).encode(), 1)
