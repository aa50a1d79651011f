"""The agent's only thread: it answers the requests that come at its socket, and ticks once a second.

Invariant: nothing here waits for a client.  Streams run on credit and pause while their client does not read, and a
client that is gone or stuck is dropped; so it neither delays the others nor holds more than a bounded amount of memory.
"""

from __future__ import annotations

import time
from _thread import allocate_lock
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from ... import protocol as wire
from ..fault import in_words
from ..noop import noop
from .connections import Connection, Connections
from .listening import Listener

Key = tuple[Connection, bytes]  # a request: the client, the request's id
Frames = list[Any]

_MOST_STREAMS, _MOST_STREAMS_PER_CLIENT = 64, 4  # at once; our own clients use one
# A call that releases the GIL for microseconds gives it to nobody: a waiting thread is not awake by then, and on a busy
# machine has no core.  So with much to send, this thread works for the first of these times and sleeps for the second.
_WORK_S, _REST_S = 200e-6, 1000e-6


def request_named(key: Key, request: dict[str, Any]) -> Key:
    """The earlier request of this client that the request is about."""
    return key[0], str(request["of"]).encode()


class Refused(Exception):
    """A request that cannot be served; (code, message) go to the client."""


class _RunningStream:
    """A stream of messages to one client."""

    def __init__(self, messages: Iterator[tuple[int, Frames]], credit: int) -> None:
        self.messages, self.credit = messages, credit
        self.sent = 0
        self.touched = time.monotonic()


class _Call:
    """A function to be called on the agent's thread, while another thread waits for it."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function
        self._error: Exception | None = None
        self._done = allocate_lock()
        self._done.acquire()

    def do(self) -> None:
        try:
            self._function()
        except Exception as error:
            self._error = error
        self._done.release()

    def wait(self, timeout_s: float) -> None:
        if not self._done.acquire(timeout=timeout_s):
            raise TimeoutError("the agent's thread has no time")
        if self._error is not None:
            raise self._error


class Server:
    """run() on the agent's thread until stop(); post() and wake() on any thread."""

    def __init__(self, listener: Listener, uids: set[int]) -> None:
        self.endpoint = f"ipc://{listener.path}"
        self.handlers: dict[str, Callable[[Key, dict[str, Any], Frames], None]] = {
            wire.NEXT: self._next,
            wire.CANCEL: self._cancel,
        }
        self.on_cancel: Callable[[Key], None] = noop
        self.on_tick: Callable[[], float] = _no_tick  # returns the seconds until its next call
        self.fault = ""  # the last exception of on_tick, in words
        self._running: dict[Key, _RunningStream] = {}
        self._posted: deque[tuple[Key, bytes, Frames]] = deque()
        self._calls: deque[_Call] = deque()
        self._stopping = self._tick_now = self.halted = self._has_run = False
        self.connections = Connections(listener, uids, self._take_request)
        self.wake = self.connections.wake
        self._rested = time.monotonic()

    @property
    def trouble(self) -> str:
        """In words, for facts."""
        return self.connections.trouble or self.fault

    def post(self, key: Key, kind: str, /, *payload: Any, **fields: Any) -> None:
        """Send a reply without waiting.  Any thread."""
        self._posted.append((key, wire.encode(kind, **fields), list(payload)))
        self.wake()

    def on_thread(self, function: Callable[[], None], timeout_s: float) -> None:
        """Call it on the agent's thread, from another thread while run() runs; raises what it raises."""
        call = _Call(function)
        self._calls.append(call)
        self.wake()
        call.wait(timeout_s)

    def tick_soon(self) -> None:
        """Have on_tick called at once.  Any thread."""
        self._tick_now = True
        self.wake()

    def stop(self) -> None:
        """Make run() return soon.  Any thread."""
        self._stopping = True
        self.wake()

    def halt(self, patience_s: float) -> None:
        """The same, with nothing closed, and wait until it has, but no longer than this: the interpreter ends."""
        self.halted, end = True, time.monotonic() + patience_s
        self.stop()
        while not self._has_run and time.monotonic() < end:
            time.sleep(0.001)

    def stream(self, key: Key, credit: int, messages: Iterator[tuple[int, Frames]]) -> None:
        """Start a stream.  Each message is (what it adds to the total at the end, frames)."""
        self._running.pop(key, None)
        if sum(other[0] == key[0] for other in self._running) >= _MOST_STREAMS_PER_CLIENT:
            raise Refused("agent", f"{_MOST_STREAMS_PER_CLIENT} streams of this client are running already")
        if len(self._running) >= _MOST_STREAMS:
            self._drop(min(self._running, key=lambda other: self._running[other].touched), "others want to be served")
        self._running[key] = _RunningStream(messages, min(credit, 4 * wire.CREDIT))

    def run(self) -> None:
        due = time.monotonic()
        while not self._stopping:
            now = time.monotonic()
            if now >= due or self._tick_now:
                self._tick_now = False
                due = now + self._tick(now)
            ready = [key for key, running in self._running.items() if running.credit > 0 and key[0].reads]
            wait_ms = 0 if ready or self._posted else max(0, int((due - now) * 1000) + 1)
            self.connections.wait(wait_ms)
            if wait_ms:
                self._rested = time.monotonic()
            self._send_posted()
            while self._calls:
                self._calls.popleft().do()
            for key in ready:
                self._advance(key)
                self._rest()
        self._has_run = True

    def close(self) -> None:
        """After run(): the last replies have half a second to be sent."""
        self._send_posted()
        self._running.clear()
        self.connections.close(linger_s=0.5)
        self.handlers.clear()  # the agent's objects refer to each other: leave no cycle to the garbage collector
        self.on_cancel, self.on_tick = noop, _no_tick

    # ---- the agent's thread

    def _tick(self, now: float) -> float:
        self._drop_idle(now)
        self.connections.maintain()
        try:
            return self.on_tick()
        except Exception as error:  # a bug of ours must not end the thread that serves everybody
            self.fault = f"tick: {in_words(error)}"
            return 1.0

    def _rest(self) -> None:
        """After each piece of work: let other threads have the GIL."""
        if time.monotonic() - self._rested > _WORK_S:
            time.sleep(_REST_S)
            self._rested = time.monotonic()

    def _take_request(self, client: Connection, frames: Frames) -> None:
        if len(frames) < 2 or len(frames[0]) > 64 or len(frames[1]) > wire.MAX_CONTROL_BYTES:
            self.connections.drop(client)
            return
        id, header, *payload = frames
        self._handle((client, id), header, payload)
        self._rest()

    def _handle(self, key: Key, header: bytes, payload: Frames) -> None:
        try:
            request = wire.decode(header)
            handler = self.handlers.get(request["kind"])
            if handler is None:
                raise Refused("protocol", f"unknown request {request['kind'][:40]!r}")
            if request["kind"] == wire.HELLO:
                key[0].take_role(request.get("role", wire.CONTROL))
            elif not key[0].role:
                raise Refused("protocol", f"{request['kind']} before hello")
            if request["kind"] in wire.OF_CONTROL and key[0].role != wire.CONTROL:
                raise Refused("read-only", f"this client may read, not control: {request['kind']} is refused")
            handler(key, request, payload)
        except Refused as refusal:
            self._fail(key, *refusal.args)
        except (wire.WireError, AttributeError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            self._fail(key, "protocol", f"bad request: {type(error).__name__}: {error}")
        except Exception as error:  # a bug of ours must not end this thread
            self._fail(key, "agent", f"{type(error).__name__}: {error}")

    def reply(self, key: Key, kind: str, /, *payload: Any, **fields: Any) -> bool:
        """Send at once; False if the client is gone or does not read.  On the agent's thread only.

        What other threads have posted goes first: no client learns that a snippet has ended before it has its end.
        """
        self._send_posted()
        return self._send(key, wire.encode(kind, **fields), list(payload))

    def _fail(self, key: Key, code: str, message: str) -> None:
        self.reply(key, wire.ERROR, code=code, message=message[:4000])

    def _send(self, key: Key, header: bytes, payload: Frames) -> bool:
        client, id = key
        return self.connections.send(client, [id, header, *payload])

    def _send_posted(self) -> None:
        while self._posted:
            self._send(*self._posted.popleft())

    def _advance(self, key: Key) -> None:
        running = self._running.get(key)
        if running is None:
            return
        try:
            counted, frames = next(running.messages)
        except StopIteration:
            del self._running[key]
            self.reply(key, wire.END, rows=running.sent)
            return
        except Exception as error:  # a bug of ours must not end this thread
            del self._running[key]
            self._fail(key, "agent", f"{type(error).__name__}: {error}")
            return
        running.sent += counted
        running.credit -= 1
        if not self._send(key, frames[0], frames[1:]):
            self._running.pop(key, None)

    def _next(self, key: Key, request: dict[str, Any], payload: Frames) -> None:
        running = self._running.get(key)
        if running is not None:
            running.credit = min(running.credit + int(request["credit"]), 4 * wire.CREDIT)
            running.touched = time.monotonic()

    def _cancel(self, key: Key, request: dict[str, Any], payload: Frames) -> None:
        cancelled = request_named(key, request)
        if self._running.pop(cancelled, None) is not None:
            self._fail(cancelled, "interrupted", "cancelled")
        self.on_cancel(cancelled)

    def _drop_idle(self, now: float) -> None:
        for key in [key for key, running in self._running.items() if now - running.touched > wire.IDLE_SECONDS]:
            self._drop(key, f"nothing was asked of it for {wire.IDLE_SECONDS:.0f} s")

    def _drop(self, key: Key, why: str) -> None:
        del self._running[key]
        self._fail(key, "agent", f"the stream was dropped: {why}")


def _no_tick() -> float:
    return 1.0
