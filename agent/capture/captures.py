"""Takes a capture through its life: armed, on, off, its trace sent, its rows deposited.

Lives on the agent's thread; begin and end are on the training thread, the trace is written by a thread of its own.
A client is known by the id that it has given its capture: the server beside the job may close a connection between two
requests.  Invariant: one capture at a time; it ends at its step; when its client cancels it or is gone, or when it has
taken too long or too much memory, at the first boundary after that or the first batch that its thread takes.
"""

from __future__ import annotations

import json
import time
from _thread import get_ident, start_new_thread
from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter_ns
from typing import Any

from ... import protocol as wire
from ...streams import KERNELS, OPERATORS, SAMPLED
from ..boundary.boundary import Boundary
from ..fault import in_words
from ..job_signals import raised_by_handler
from ..noop import noop
from ..serve.deposits import Deposits
from ..serve.server import Key, Refused, Server
from ..steps.sampling import Sampling
from ..steps.step_count import Steps
from ..storage.log import Log
from ..storage.rows import Stream
from .capture import Capture, messages, rss_bytes
from .histories import Histories
from .profiler import Profiler, cpu_model, graph_is_captured, job_profiles, why_none

_RETENTION_BYTES = {OPERATORS: 36 << 20, KERNELS: 16 << 20}
_MOST_STEPS, _ID_CHARACTERS = 100, 64
_LOOK_S = 0.1
_ENDS_S, _EXPORT_S = 4.0, 10.0  # so long a detach waits for the boundary that ends it, and for its trace
_ENDED = "its training thread has ended"
_NO_STEP = "torch's profiler, which a capture began, because the training thread comes to no step that ends it"
_STILL_ON = "a capture ends only with the step that is under way. Detach again after that."


class Captures:
    """armed(), tick() and the handlers on the agent's thread, close() on any other."""

    def __init__(
        self, server: Server, streams: dict[str, Stream], log: Log, boundary: Boundary, steps: Steps, sampling: Sampling
    ) -> None:
        self._server, self._boundary, self._steps, self._sampling = server, boundary, steps, sampling
        self._deposits = Deposits(streams, log, _RETENTION_BYTES)
        self._histories = Histories(server, boundary, steps)
        self._capture: Capture | None = None
        self._is_closed = False
        server.handlers |= {wire.CAPTURE: self._watch, wire.EVENTS: self._send, wire.KEEP: self._keep}

    # ---- begin

    def armed(self, order: Mapping[str, Any] | None) -> Callable[[], str] | None:
        """What to run at the boundary in place of a snippet, if a capture is ordered; it returns what to tell."""
        if order is None:
            return None
        id, steps, shapes = str(order["id"])[:_ID_CHARACTERS], int(order["steps"]), bool(order["shapes"])
        if not 0 < steps <= _MOST_STEPS:
            raise Refused("protocol", f"a capture takes 1 to {_MOST_STEPS} steps")
        if self._is_taken():
            raise Refused("captured", "another command is capturing it. Wait until that ends.")
        if why := why_none():
            raise Refused("no-capture", f"it cannot be captured: {why}.")
        return partial(self._begin, id, steps, shapes)

    def _is_taken(self) -> bool:
        other = self._capture
        return other is not None and not (other.is_over and other.is_left)

    def _begin(self, id: str, steps: int, shapes: bool) -> str:
        """On the training thread, at the boundary."""
        if self._is_taken():
            return json.dumps({"code": "captured", "message": "another command is capturing it."})
        if job_profiles():
            return json.dumps({"code": "no-capture", "message": "its own torch.profiler is running."})
        if graph_is_captured():
            return json.dumps({"code": "no-capture", "message": "it is capturing a CUDA graph. Try again."})
        begun = perf_counter_ns()
        self._drop()
        capture = Capture(id, Profiler(shapes, self._job_begins), rss_bytes(), self._thread_ends)
        capture.profiler.start()
        try:
            self._have_begun(capture, begun, steps)
        except BaseException:  # what a signal handler of the job has raised
            self._switch_off(capture)
            raise
        return json.dumps({})

    def _have_begun(self, capture: Capture, begun: int, steps: int) -> None:
        """The profiler is on: the taps too, for so many steps.  The agent's thread sees a capture that is complete."""
        count = self._steps.count
        self._sampling.forced = range(count, count + steps)
        self._sampling.switch_taps(SAMPLED, False)
        self._steps.resample()
        now = perf_counter_ns()
        capture.told = {"start_ns": now, "wall_offset_ns": time.time_ns() - perf_counter_ns(), "count": count,
                        "begin_ns": now - begun, "threads": capture.profiler.threads,
                        "cuda": capture.profiler.uses_cuda}  # fmt: skip
        self._ask(capture, count + steps)
        self._capture = capture
        if self._is_closed:  # meanwhile: no boundary comes any more
            self._end(capture)

    def _job_begins(self) -> None:
        """The job is about to begin a profiler of its own: ours ends first, in the midst of the step if need be."""
        capture = self._capture
        if capture is not None and capture.is_on:
            capture.why = "the job began a profiler of its own"
            self._end(capture) if get_ident() == capture.thread else self._hasten(capture)

    # ---- end

    def _ask(self, capture: Capture, count: int) -> None:
        """Have it end at the boundary after `count` steps, -1: at the next."""
        capture.ticket = self._boundary.request(lambda frame: self._end(capture), count, lambda: self._ask(capture, -1))

    def _hasten(self, capture: Capture) -> None:
        """Have it end as soon as its thread comes to a place where it can; a validation of an hour has no boundary."""
        if capture.is_on:
            self._boundary.at_load = lambda: self._end(capture) if get_ident() == capture.thread else None
        if capture.is_on and capture.ticket is not None and capture.ticket.count >= 0 and capture.ticket.cancel():
            self._ask(capture, -1)

    def _end(self, capture: Capture) -> None:
        """On the training thread.  Nothing of ours gets into the job, except what its signal handlers raise."""
        if not capture.is_on:
            return
        if get_ident() != capture.thread or graph_is_captured():
            if capture.has_thread:  # it may come back
                self._ask(capture, -1)
            return
        begun = perf_counter_ns()
        capture.told |= {"end_ns": begun, "steps": self._steps.count - capture.told["count"]}
        try:
            self._switch_off(capture)
        finally:
            capture.told["stop_ns"] = perf_counter_ns() - begun
            self._hand_over(capture)

    def _switch_off(self, capture: Capture) -> None:
        capture.is_on, capture.thread_end = False, None
        self._boundary.at_load, self._sampling.forced = noop, range(0)
        self._steps.resample()
        try:
            capture.profiler.stop()
        except BaseException as error:
            capture.fault = f"torch's profiler did not end: {in_words(error)}"
            if raised_by_handler(error):
                raise

    def _hand_over(self, capture: Capture) -> None:
        """The training goes on while another thread writes the trace, if there is one."""
        capture.is_over = bool(capture.fault)
        try:
            if not capture.is_over:
                start_new_thread(self._export, (capture,))
        except RuntimeError as error:  # the system has no thread left
            capture.fault, capture.is_over = f"its trace could not be written: {error}", True

    def _export(self, capture: Capture) -> None:
        begun = perf_counter_ns()
        try:
            if not self._is_closed:
                capture.trace = capture.profiler.save()
            capture.told |= {
                "export_ns": perf_counter_ns() - begun,
                "bytes": 0 if capture.trace is None else len(capture.trace),
                "grown_bytes": max(0, rss_bytes() - capture.rss_bytes),
                "cpu": cpu_model(),
            }
        except Exception as error:
            capture.fault = f"torch wrote no trace: {in_words(error)}"
        capture.is_over = True
        if self._is_closed:
            capture.free()
        self._server.tick_soon()

    # ---- requests

    def _watch(self, key: Key, request: dict[str, Any], payload: Any) -> None:
        """Answered once the capture is over; cancelled, it ends at the next boundary."""
        self._own(request).watcher = key
        self._server.tick_soon()

    def _own(self, request: Mapping[str, Any]) -> Capture:
        capture = self._capture
        if capture is None or capture.id != request["id"]:
            raise Refused("protocol", "no such capture has begun")
        capture.heard = time.monotonic()
        return capture

    def stay(self, key: Key) -> None:
        """The client that waits is still there."""
        if self._capture is not None and self._capture.watcher == key:
            self._capture.heard = time.monotonic()

    def cancel(self, key: Key) -> None:
        """The client that waits wants it no more."""
        if self._capture is not None and self._capture.watcher == key:
            self._capture.is_unwanted = True
            self._hasten(self._capture)

    def _send(self, key: Key, request: dict[str, Any], payload: Any) -> None:
        if (trace := self._own(request).trace) is None:
            raise Refused("protocol", "it has no trace")
        self._server.stream(key, int(request["credit"]), messages(trace, int(request["first"]), int(request["last"])))

    def _keep(self, key: Key, request: dict[str, Any], payload: Any) -> None:
        """Rows that the client has made of the trace, which goes as the first of them come."""
        self._own(request).free()
        ids = self._deposits.take(request["names"], payload)
        if request["last"]:
            self._capture = None
        self._server.reply(key, wire.STORED, ids=ids, count=self._steps.count)

    # ---- the agent's thread

    def tick(self) -> float:
        """Seconds until the next call is due."""
        capture, due = self._capture, self._histories.tick()
        if capture is None:
            return due
        if capture.is_on:
            capture.why = capture.why_end or capture.why
            if capture.why:
                self._hasten(capture)
        elif capture.is_over and capture.is_left:
            self._fail(capture, "interrupted", "its command has ended")
        elif capture.is_over and capture.watcher is not None:
            self._tell(capture, capture.watcher)
        return _LOOK_S

    def _tell(self, capture: Capture, watcher: Key) -> None:
        if capture.fault:
            self._fail(capture, "no-capture", capture.fault)
            return
        capture.watcher, capture.heard, capture.is_told = None, time.monotonic(), True
        following = self._deposits.begin()
        self._server.reply(watcher, wire.CAPTURED, why=capture.why, next=following, **capture.told)

    def _fail(self, capture: Capture, code: str, message: str) -> None:
        if capture.watcher is not None:
            self._server.reply(capture.watcher, wire.ERROR, code=code, message=message)
        self._drop()

    def _drop(self) -> None:
        capture, self._capture = self._capture, None
        if capture is not None:
            capture.free()

    def end(self) -> str:
        """End it and wait for that; why the agent has to stay, "" if it may leave.  On any thread but the agent's."""
        capture, begun = self._capture, time.monotonic()
        if capture is None or (capture.is_on and not capture.has_thread):
            return ""
        if capture.is_on:
            capture.why = "the agent was about to leave"
            self._hasten(capture)
        while not capture.is_over and time.monotonic() < begun + (_ENDS_S if capture.is_on else _EXPORT_S):
            time.sleep(0.005)
        return _STILL_ON if capture.is_on else ""

    def close(self) -> list[str]:
        """End it; what stays, in words.  One that is still on stays known, so that a profiler of the job's own ends it.
        On any thread but the agent's."""
        self._is_closed = True
        self._histories.close()
        self.end()
        if self._capture is not None and self._capture.is_on:
            return [_NO_STEP]
        self._drop()
        return []

    def finish(self) -> None:
        """The interpreter is about to end; a training thread that goes on meanwhile gets some time for a boundary."""
        self._thread_ends()
        if self._capture is not None and self._capture.is_on:
            self._capture.fault = _ENDED
            self.end()

    def _thread_ends(self) -> None:
        """If it is the training thread: torch would take the process down with a profiler that is on, if it is not the
        first one."""
        capture = self._capture
        if capture is not None and capture.is_on and get_ident() == capture.thread:
            capture.fault = _ENDED
            self._end(capture)

    def forget(self) -> None:
        """In a forked child: nothing of ours stays in torch's way."""
        self._histories.forget()
        if self._capture is not None:
            self._capture.profiler.leave_child()
