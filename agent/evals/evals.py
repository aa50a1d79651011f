"""Evals in three phases: a client arms a snippet, every rank says where it stands; `go` names one step, at which each
rank stops and says so; then comes the word to `run`.

Lives on the agent's thread; the snippets run elsewhere.  The one invariant: whatever becomes of a client,
an armed snippet expires and a running one is cancelled at its time-out; and none runs unless all ranks stand
at the step, for a collective in it would meet one of the training, which ends the job.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from ... import protocol as wire
from ..boundary.boundary import Boundary, Ticket
from ..serve.server import Key, Refused, Server
from ..steps.step_count import Steps
from ..storage.log import Log
from ..storage.rows import Stream
from .evaluation import Evaluation
from .run_gate import WORD_SECONDS, RunGate

_ARMED_SECONDS = 30.0  # a client that armed and went away
_FLUSH_SECONDS = 0.1  # so that a progress line is seen while the next one is computed
_AGAIN_SECONDS = 0.5  # a snippet that swallows an interrupt gets another
_SESSIONS, _SESSIONS_A_CLIENT = 32, 4
_BY = 200  # characters of who asks
_WAITING_SECONDS = 3600.0  # a client that went away while its snippet waited for a boundary


class _Session:
    def __init__(self, evaluation: Evaluation, where: str, timeout: float | None, by: str) -> None:
        self.evaluation, self.where, self.by = evaluation, where, by
        self.timeout = timeout
        self.ticket: Ticket | None = None
        self.word = RunGate()
        self.begun = False
        self.expires: float | None = time.monotonic() + _ARMED_SECONDS


class Evals:
    """arm(), go(), cancel() and tick() on the agent's thread; current() on any."""

    def __init__(self, server: Server, boundary: Boundary, steps: Steps, log: Log, spans: Stream) -> None:
        self._server, self._boundary, self._steps = server, boundary, steps
        self._log, self._spans = log, spans
        self._sessions: dict[Key, _Session] = {}
        self._own: dict[str, Any] = {}  # names that snippets made, for later snippets

    def current(self, thread: int) -> Evaluation | None:
        """The snippet that runs on this thread, if one does."""
        if not self._sessions:  # asked at every collective
            return None
        for session in list(self._sessions.values()):
            if session.evaluation.running and session.evaluation.thread == thread:
                return session.evaluation
        return None

    def arm(self, key: Key, request: dict[str, Any], payload: Any) -> None:
        where = request["where"]
        if where not in ("boundary", "now"):
            raise Refused("protocol", f"an eval runs at the boundary or now, not {where!r}")
        evaluation = Evaluation(
            code=str(request["code"]),
            filename=str(request.get("filename") or "<eval>"),
            write=bool(request.get("write", True)) and where == "boundary",
            send=self._sender(key),
            log=self._log,
            spans=self._spans,
            own=self._own,
            by=str(request.get("by", ""))[:_BY],
            where=where,
            ranks=request.get("ranks"),
        )
        timeout = request.get("timeout")
        self._make_room(key)
        steps, now, holder = self._steps, time.perf_counter_ns(), self.holder()
        by = str(request.get("by", ""))[:_BY]
        self._sessions[key] = _Session(evaluation, where, None if timeout is None else float(timeout), by)
        waiting = None if steps.last_ns is None else (now - steps.last_ns) / 1e9
        fields = {
            "count": steps.count,
            "base": steps.base,
            "step_ns": steps.typical_ns(),
            "waiting": waiting,
            "holder": holder,
        }
        self._server.reply(key, wire.ARMED, **fields)

    def _make_room(self, key: Key) -> None:
        """Clients may vanish between arm and go: of too many the one that was armed first goes."""
        for other in [other for other, session in self._sessions.items() if session.evaluation.done]:
            self._drop(other)
        if key in self._sessions or sum(other[0] == key[0] for other in self._sessions) >= _SESSIONS_A_CLIENT:
            raise Refused("held", "this client has armed too much already")
        waiting = [other for other, session in self._sessions.items() if not session.begun]
        if len(waiting) >= _SESSIONS:
            self.cancel(waiting[0])

    def holder(self) -> str | None:
        """Whose snippet the training waits for."""
        running = (each for each in self._sessions.values() if each.evaluation.running and each.where == "boundary")
        return next((each.by or "somebody" for each in running), None)

    def go(self, key: Key, request: dict[str, Any], payload: Any) -> None:
        armed = (key[0], str(request["of"]).encode())
        session = self._sessions.get(armed)
        if session is None or session.begun or session.ticket is not None:
            raise Refused("protocol", "go for a snippet that is not armed")
        count = int(request.get("count", -1))
        if count < -1:
            raise Refused("protocol", f"no boundary has the number {count}")
        if session.where == "now":
            self._begin(session)
            sys.modules["_thread"].start_new_thread(session.evaluation.run_now, (self._steps.training_thread,))
            return
        if count == -1:
            self._may_run(session)
        else:
            session.expires = time.monotonic() + WORD_SECONDS
        self._request(armed, session, count)

    def stay(self, key: Key, request: dict[str, Any], payload: Any) -> None:
        session = self._sessions.get((key[0], str(request["of"]).encode()))
        if session is not None and not session.begun and session.ticket is not None:
            session.expires = time.monotonic() + WORD_SECONDS
            session.word.extend()

    def run(self, key: Key, request: dict[str, Any], payload: Any) -> None:
        session = self._sessions.get((key[0], str(request["of"]).encode()))
        if session is None or session.ticket is None:
            raise Refused("protocol", "run for a snippet that is not ready")
        self._may_run(session)

    def _may_run(self, session: _Session) -> None:
        if not session.begun:
            session.expires = time.monotonic() + _WAITING_SECONDS
        session.word.give(True)

    def _request(self, armed: Key, session: _Session, count: int) -> None:
        """Have it run at the boundary after `count` steps, once the word is given; at -1, the next one, it is."""

        def run(frame: Any) -> None:
            told, since = False, time.perf_counter_ns()
            if count >= 0:
                self._server.post(armed, wire.READY)
            try:
                told = session.word.wait()
            finally:
                if not told:
                    self._miss(armed, "the word to run did not come")
            if told:
                self._begin(session)
                session.evaluation.run_at(frame, self._steps.count, since)

        def missed() -> None:
            self._miss(armed, f"the step is past: {self._steps.count} boundaries are done, {count} were asked for")

        session.ticket = self._boundary.request(run, count, missed)
        if armed not in self._sessions:  # it was missed at once
            session.ticket = None

    def _miss(self, key: Key, why: str) -> None:
        """On whichever thread notices."""
        self._drop(key)
        self._server.post(key, wire.ERROR, code="eval-missed", message=why)

    def _begin(self, session: _Session) -> None:
        """The time-out counts from the moment the snippet starts; on the thread that runs it, or just before."""
        session.begun, session.expires = True, None
        if session.timeout is not None:
            session.expires = time.monotonic() + session.timeout
            self._server.wake()

    def _sender(self, key: Key) -> Any:
        def send(kind: str, fields: dict[str, Any]) -> None:
            self._server.post(key, kind, **fields)

        return send

    def cancel(self, key: Key, code: str = "interrupted", why: str = "cancelled before it ran") -> None:
        """Take back an armed snippet, and say why, or interrupt a running one."""
        session = self._sessions.get(key)
        if session is None:
            return
        ticket = session.ticket  # which goes where the boundary is missed, on another thread
        if not session.begun and (ticket is None or ticket.cancel()):
            self._drop(key)
            self._server.post(key, wire.ERROR, code=code, message=why)
        else:
            session.expires = time.monotonic() + _AGAIN_SECONDS
            session.evaluation.cancel()
            session.word.give(False)

    def tick(self) -> float:
        """Expire and interrupt; seconds until the next call is wanted."""
        now, soon = time.monotonic(), 1.0
        for key, session in list(self._sessions.items()):
            if session.begun:
                session.evaluation.flush()
                soon = min(soon, _FLUSH_SECONDS)
            if session.evaluation.done:
                self._drop(key)
            elif session.expires is not None and now >= session.expires:
                self.cancel(key, "eval-missed", "its command was not heard of for too long")
            elif session.expires is not None:
                soon = min(soon, session.expires - now)
        return max(0.01, soon)

    def _drop(self, key: Key) -> None:
        session = self._sessions.pop(key, None)
        if session is not None:
            session.ticket = None  # whose run() holds the session: nothing is to be left to the collector

    def release(self) -> None:
        """After the agent's thread: those that nobody asks about any more."""
        for key in list(self._sessions):
            self._drop(key)

    def close(self) -> None:
        for key in list(self._sessions):
            self.cancel(key)
        self._own.clear()
