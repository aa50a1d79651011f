"""Takes an eval through its life (see the package's docstring): arm, go, stay, run, cancel.

Lives on the agent's thread; the snippets run on other threads.  Invariant: whatever happens to the client, an armed
snippet expires, a running one is cancelled at its time-out, and the training waits only as long as its client keeps
reporting, and a few seconds more; and no snippet runs unless all ranks wait at the step, because a collective in the
snippet would match one of the training's, which ends the job.
"""

from __future__ import annotations

import time
from _thread import start_new_thread
from typing import Any

from ... import protocol as wire
from ..boundary.boundary import Boundary, Ticket
from ..capture.captures import Captures
from ..serve.server import Key, Refused, Server, request_named
from ..steps.step_count import Steps
from ..storage.log import Log
from ..storage.rows import Stream
from ..torch_state import is_distributed
from .evaluation import Evaluation
from .gates import CLIENT_TIMEOUT_SECONDS, RunGate

_ARMED_SECONDS = 30.0  # for a client that armed and went away
_FLUSH_SECONDS = 0.1  # so that a progress line is visible while the next one is computed
_INTERRUPT_AGAIN_SECONDS = 0.5  # a snippet that swallows an interrupt gets another
_NEXT_OPERATION_SECONDS = 2.0  # for a cancelled snippet to end, as on the other ranks, in front of its next operation
_LOOK_SECONDS = 0.02  # likewise, to come out of a call in which none has begun
_MOST_ENDING_SECONDS = 10.0  # likewise, if it comes to one operation after another inside of a call
_ENDS_SECONDS = 12.0  # so long a detach waits for cancelled snippets that have operations; else
_ENDS_AT_ONCE_SECONDS = 4.0
_MOST_SESSIONS, _MOST_SESSIONS_PER_CLIENT = 32, 4
_BY_CHARACTERS, _REASON_CHARACTERS = 200, 2000  # kept of the client's name, and of why an operation does not begin
_WAITING_SECONDS = 3600.0  # for a client that went away while its snippet waited for a boundary


class _Session:
    """One eval from `arm` to `done`."""

    def __init__(self, evaluation: Evaluation, timeout: float | None) -> None:
        self.evaluation, self.timeout = evaluation, timeout
        self.ticket: Ticket | None = None  # while a boundary is requested
        self.gate = RunGate()
        self.started = False
        self.heard = time.monotonic()  # of its client
        self.expires: float | None = self.heard + _ARMED_SECONDS
        self.ends_since: float | None = None  # when it was cancelled
        self.is_patient = False  # its client, which would know, has not said whether other ranks have had operations


class Evals:
    """arm(), go(), cancel() and tick() on the agent's thread; current() on any."""

    def __init__(
        self, server: Server, boundary: Boundary, steps: Steps, log: Log, spans: Stream, captures: Captures
    ) -> None:
        self._server, self._boundary, self._steps, self._captures = server, boundary, steps, captures
        self._log, self._spans = log, spans
        self._sessions: dict[Key, _Session] = {}
        self._own: dict[str, Any] = {}  # names that snippets defined, for later snippets
        self.held_since_ns: int | None = None  # since when the training waits for a snippet, if it does
        self.freed_ns = 0  # when it last went on, if it did

    def current(self, thread: int) -> Evaluation | None:
        """The snippet that runs on this thread, if any."""
        if not self._sessions:  # called at every collective
            return None
        for session in list(self._sessions.values()):
            if session.evaluation.running and session.evaluation.thread == thread:
                return session.evaluation
        return None

    def arm(self, key: Key, request: dict[str, Any], payload: Any) -> None:
        """Register a snippet and reply where this rank is in its training."""
        where = request["where"]
        if where not in ("boundary", "now"):
            raise Refused("protocol", f"an eval runs at the boundary or now, not {where!r}")
        evaluation = Evaluation(
            code=payload[0].decode(),
            filename=str(request.get("filename") or "<eval>"),
            write=bool(request.get("write", True)) and where == "boundary",
            send=lambda kind, fields: self._server.post(key, kind, **fields),
            log=self._log,
            spans=self._spans,
            own=self._own,
            by=str(request.get("by", ""))[:_BY_CHARACTERS],
            where=where,
            ranks=request.get("ranks"),
            frame=str(request.get("frame") or "")[:_BY_CHARACTERS],
            names=None if request.get("names") is None else str(request["names"])[:_BY_CHARACTERS],
            instead=self._captures.armed(request.get("capture")),
        )
        timeout = request.get("timeout")
        self._make_room(key)
        steps, holder, last = self._steps, self.holder(), self._steps.last_ns
        waiting = None if last is None else (time.perf_counter_ns() - max(last, self.freed_ns)) / 1e9
        self._sessions[key] = _Session(evaluation, None if timeout is None else float(timeout))
        place = {"count": steps.count, "base": steps.base, "step_ns": steps.typical_ns()}
        self._server.reply(key, wire.ARMED, **place, waiting=waiting, holder=holder)

    def _make_room(self, key: Key) -> None:
        """Clients may vanish between arm and go: when there are too many, cancel the one that was armed first."""
        for other in [other for other, session in self._sessions.items() if session.evaluation.done]:
            self._drop(other)
        if key in self._sessions or sum(other[0] == key[0] for other in self._sessions) >= _MOST_SESSIONS_PER_CLIENT:
            raise Refused("held", "this client has armed too much already")
        not_started = [other for other, session in self._sessions.items() if not session.started]
        if len(not_started) >= _MOST_SESSIONS:
            self.cancel(not_started[0])

    def holder(self) -> str | None:
        """The client whose snippet the training waits for."""
        evaluations = (session.evaluation for session in self._sessions.values())
        return next((each.by or "somebody" for each in evaluations if each.running and each.where == "boundary"), None)

    def go(self, key: Key, request: dict[str, Any], payload: Any) -> None:
        """Run the snippet now, or have the training stop for it at the boundary after `count` steps."""
        armed = request_named(key, request)
        session = self._sessions.get(armed)
        if session is None or session.started or session.ticket is not None:
            raise Refused("protocol", "go for a snippet that is not armed")
        count = int(request.get("count", -1))
        if count < -1:
            raise Refused("protocol", f"no boundary has the number {count}")
        if session.evaluation.where == "now":
            self._start(session)
            try:
                start_new_thread(session.evaluation.run_now, (self._steps.training_thread,))
            except RuntimeError:  # the system has no thread left
                self._drop(armed)
                raise
            return
        if count == -1:
            self._allow(session)
        else:
            session.expires = time.monotonic() + CLIENT_TIMEOUT_SECONDS
        self._request(armed, session, count, str(request.get("order") or "")[:_BY_CHARACTERS])

    def stay(self, key: Key, request: dict[str, Any], payload: Any) -> None:
        """The client is still there: keep waiting for `run`, or in front of an operation."""
        named = request_named(key, request)
        session = self._sessions.get(named)
        self._captures.stay(named)
        if session is not None:
            session.heard = time.monotonic()
            if not session.started and session.ticket is not None:
                session.expires = session.heard + CLIENT_TIMEOUT_SECONDS
                session.gate.extend()

    def decide(self, key: Key, request: dict[str, Any], payload: Any) -> None:
        """Let the operation begin in front of which the snippet stands, or not."""
        number, why_not = int(request["number"]), str(request["why_not"])[:_REASON_CHARACTERS]
        session, last = self._sessions.get(request_named(key, request)), bool(request["last"])
        if session is not None:
            session.evaluation.operations.decide(number, why_not, last)

    def run(self, key: Key, request: dict[str, Any], payload: Any) -> None:
        """Every rank is ready: let the snippet run."""
        session = self._sessions.get(request_named(key, request))
        if session is None or session.ticket is None:
            raise Refused("protocol", "run for a snippet that is not ready")
        self._allow(session)

    def _allow(self, session: _Session) -> None:
        if not session.started:
            session.expires = time.monotonic() + _WAITING_SECONDS
        session.gate.decide(True)

    def _request(self, armed: Key, session: _Session, count: int, order: str) -> None:
        """Have it run at the boundary after `count` steps once `run` comes; -1: at the next one, without `run`."""

        def at_boundary(frame: Any) -> None:
            allowed, since = False, time.perf_counter_ns()
            self.held_since_ns = since
            if count >= 0:
                self._server.post(armed, wire.READY)
            try:
                allowed = session.gate.wait()
                if allowed:
                    self._start(session)
                    session.evaluation.run_at(frame, self._steps.count, since)
            finally:
                if not allowed:
                    self._miss(armed, "the client did not send run in time")
                self.held_since_ns, self.freed_ns = None, time.perf_counter_ns()

        def missed() -> None:
            self._miss(armed, f"the step is past: {self._steps.count} boundaries are done, {count} were asked for")

        session.ticket = self._boundary.request(at_boundary, count, missed, order)
        if armed not in self._sessions:  # the boundary was past already
            session.ticket = None

    def _miss(self, key: Key, why: str) -> None:
        """Report that the snippet will not run.  Any thread."""
        self._drop(key)
        self._server.post(key, wire.ERROR, code="eval-missed", message=why)

    def _start(self, session: _Session) -> None:
        """Count the time-out from now.  On the thread that runs the snippet, or just before that thread starts."""
        session.started, session.expires = True, None
        if session.timeout is not None:
            session.expires = time.monotonic() + session.timeout
            self._server.wake()

    def cancel(
        self, key: Key, code: str = "interrupted", why: str = "cancelled before it ran", by_client: bool = False
    ) -> None:
        """Withdraw an armed snippet and report why, or end a running one: in front of its next operation between ranks
        if it has had any, else where it is.  One that stands in front of an operation is for its client to end."""
        session = self._sessions.get(key)
        if session is None:
            self._captures.cancel(key)
            return
        ticket = session.ticket  # read once: another thread clears it if the boundary is missed
        if not session.started and (ticket is None or ticket.cancel()):
            self._drop(key)
            self._server.post(key, wire.ERROR, code=code, message=why)
        else:
            if session.evaluation.operations.is_waiting and not by_client:
                session.expires = time.monotonic() + _INTERRUPT_AGAIN_SECONDS
                session.evaluation.operations.ask_to_end()
            else:
                self._end(key, session, by_client)
            session.gate.decide(False)

    def _end(self, key: Key, session: _Session, by_client: bool) -> None:
        now, operations = time.monotonic(), session.evaluation.operations
        if session.ends_since is None:
            session.ends_since, session.is_patient = now, not by_client and is_distributed()
            if session.evaluation.is_in_call:
                self._server.post(key, wire.ENDING)
        session.expires = now + _INTERRUPT_AGAIN_SECONDS
        if operations.close() or operations.is_waiting:
            return
        last = max(session.ends_since, operations.asked_at)
        patience = min(last + _NEXT_OPERATION_SECONDS, session.ends_since + _MOST_ENDING_SECONDS)
        if now < patience and (operations.asked or session.is_patient):
            session.expires = patience
        elif now < patience and session.evaluation.is_in_call:
            session.expires = now + _LOOK_SECONDS
        elif not operations.is_beginning:
            session.evaluation.cancel()

    def tick(self) -> float:
        """Flush output, cancel what has expired.  Returns the seconds until the next call is due."""
        now, due = time.monotonic(), 1.0
        for key, session in list(self._sessions.items()):
            if session.started:
                session.evaluation.flush()
                due = min(due, _FLUSH_SECONDS)
            if session.evaluation.done:
                self._drop(key)
            elif session.evaluation.operations.is_left(session.heard):
                session.evaluation.operations.abandon()
                self.cancel(key)
            elif session.expires is not None and now >= session.expires:
                self.cancel(key, "eval-missed", "the client was silent for too long")
            elif session.expires is not None:
                due = min(due, session.expires - now)
        return max(0.01, min(due, self._captures.tick()))

    def _drop(self, key: Key) -> None:
        session = self._sessions.pop(key, None)
        if session is not None:
            session.ticket = None  # its run() holds the session: leave no cycle to the garbage collector

    def release(self) -> None:
        """After the agent's thread has ended: drop the sessions that are left."""
        for key in list(self._sessions):
            self._drop(key)

    def end(self) -> str:
        """Cancel every snippet and wait for its end; why the agent has to stay, "" if it may leave.  On any thread but
        the agent's."""
        for key in list(self._sessions):
            self.cancel(key, "eval-missed", "the agent is about to leave")
        begun = time.monotonic()
        while running := self._running():
            with_operations = any(each.operations.asked for each in running)
            if time.monotonic() - begun > (_ENDS_SECONDS if with_operations else _ENDS_AT_ONCE_SECONDS):
                break
            time.sleep(0.005)
        return f"a snippet of {', '.join(each.by or 'somebody' for each in running)} does not end." if running else ""

    def _running(self) -> list[Evaluation]:
        sessions = list(self._sessions.values())
        return [each.evaluation for each in sessions if each.started and not each.evaluation.done]

    def close(self) -> list[str]:
        """Cancel every snippet, whatever its client does, and end a capture; what stays of it, in words."""
        for key in list(self._sessions):
            self.cancel(key, "gone", "the agent leaves", by_client=True)
        self._own.clear()
        return self._captures.close()
