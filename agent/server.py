"""The one thread of the agent: a ROUTER socket that answers readers, and a tick once a second.

The one invariant: nothing here waits for a client.  Sends are NOBLOCK, streams travel on credit, and who
is gone or stuck is dropped; so a stuck client neither delays another nor holds memory.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import zmq

from .. import protocol as wire

Key = tuple[bytes, bytes]  # identity of a client, its request id
Frames = list[Any]


class Refused(Exception):
    """A request that cannot be served; (code, message) go to the client."""


class _Running:
    """A stream of messages on its way to one client."""

    def __init__(self, messages: Iterator[tuple[int, Frames]], credit: int) -> None:
        self.messages, self.credit = messages, credit
        self.sent = 0
        self.touched = time.monotonic()


class Server:
    """run() on the agent's thread until stop(); post() and wake() from any thread."""

    def __init__(self, endpoint: str, uids: set[int]) -> None:
        self.endpoint = endpoint
        self.handlers: dict[str, Callable[[Key, dict[str, Any], Frames], None]] = {
            wire.NEXT: self._next,
            wire.CANCEL: self._cancel,
        }
        self.on_cancel: Callable[[Key], None] = lambda key: None
        self.on_tick: Callable[[], float] = lambda: 1.0  # returns seconds until it wants to be called again
        self._running: dict[Key, _Running] = {}
        self._posted: deque[tuple[Key, bytes, Frames]] = deque()
        self._stopping = False
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._context = zmq.Context()
        self._socket = _bound(self._context, endpoint, uids)

    def post(self, key: Key, kind: str, /, *payload: Any, **fields: Any) -> None:
        """Send a reply from any thread, without waiting."""
        self._posted.append((key, wire.encode(kind, **fields), list(payload)))
        self.wake()

    def wake(self) -> None:
        with contextlib.suppress(OSError):  # closed, or 2^64 - 1 wakes ahead: it is awake
            os.eventfd_write(self._wake, 1)

    def stop(self) -> None:
        """Any thread: run() returns soon."""
        self._stopping = True
        self.wake()

    def stream(self, key: Key, credit: int, messages: Iterator[tuple[int, Frames]]) -> None:
        """Start to send; each message is (what it counts for in the closing total, frames)."""
        if len(self._running) >= 64:
            raise Refused("agent", "64 streams are running already")
        self._running[key] = _Running(messages, credit)

    def run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._wake, zmq.POLLIN)
        due = time.monotonic()
        while not self._stopping:
            now = time.monotonic()
            if now >= due:
                due = now + self.on_tick()
                self._drop_idle(now)
            ready = [key for key, running in self._running.items() if running.credit > 0]
            wait_ms = 0 if ready or self._posted else max(0, int((due - now) * 1000) + 1)
            for source, _ in poller.poll(wait_ms):
                if source is self._socket:
                    self._take_requests()
                else:
                    self._drain_wake()
            self._send_posted()
            for key in ready:
                self._advance(key)

    def close(self) -> None:
        """After run(): the last replies get half a second to leave."""
        self._send_posted()
        self._running.clear()
        self._socket.close(linger=500)
        self._context.term()
        os.close(self._wake)

    def abandon(self) -> list[Any]:
        """In a forked child: let go of the parent's descriptors; what is returned must never be collected."""
        os.close(self._wake)
        return [self._socket, self._context]

    # ---- the agent's thread

    def _take_requests(self) -> None:
        for _ in range(64):  # then the streams get their turn
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if len(frames) >= 3 and len(frames[1]) <= 64:
                self._handle((frames[0], frames[1]), frames[2], frames[3:])

    def _handle(self, key: Key, header: bytes, payload: Frames) -> None:
        try:
            request = wire.decode(header)
            handler = self.handlers.get(request["kind"])
            if handler is None:
                raise Refused("protocol", f"unknown request {request['kind'][:40]!r}")
            handler(key, request, payload)
        except Refused as refusal:
            self._fail(key, *refusal.args)
        except (wire.WireError, LookupError, TypeError, ValueError) as error:
            self._fail(key, "protocol", f"bad request: {type(error).__name__}: {error}")
        except Exception as error:  # a fault of ours must not end the thread that serves everybody
            self._fail(key, "agent", f"{type(error).__name__}: {error}")

    def reply(self, key: Key, kind: str, /, *payload: Any, **fields: Any) -> bool:
        """Send at once; False if the client is gone or does not read.  The agent's thread only."""
        return self._send(key, wire.encode(kind, **fields), list(payload))

    def _fail(self, key: Key, code: str, message: str) -> None:
        self.reply(key, wire.ERROR, code=code, message=message[:4000])

    def _send(self, key: Key, header: bytes, payload: Frames) -> bool:
        try:
            self._socket.send_multipart([*key, header, *payload], zmq.NOBLOCK)
            return True
        except zmq.ZMQError:  # EHOSTUNREACH: gone; EAGAIN: does not read
            return False

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
        except Exception as error:  # likewise
            del self._running[key]
            self._fail(key, "agent", f"{type(error).__name__}: {error}")
            return
        running.sent += counted
        running.credit -= 1
        if not self._send(key, *_split(frames)):
            self._running.pop(key, None)

    def _next(self, key: Key, request: dict[str, Any], payload: Frames) -> None:
        running = self._running.get(key)
        if running is not None:
            running.credit = min(running.credit + int(request["credit"]), 4 * wire.CREDIT)
            running.touched = time.monotonic()

    def _cancel(self, key: Key, request: dict[str, Any], payload: Frames) -> None:
        cancelled = (key[0], str(request["of"]).encode())
        if self._running.pop(cancelled, None) is not None:
            self._fail(cancelled, "interrupted", "cancelled")
        self.on_cancel(cancelled)

    def _drop_idle(self, now: float) -> None:
        for key in [key for key, running in self._running.items() if now - running.touched > wire.IDLE_SECONDS]:
            del self._running[key]

    def _drain_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)


def _split(frames: Frames) -> tuple[bytes, Frames]:
    return frames[0], frames[1:]


def _bound(context: zmq.Context[Any], endpoint: str, uids: set[int]) -> Any:
    context.set(zmq.MAX_SOCKETS, 1024)
    socket = context.socket(zmq.ROUTER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    socket.setsockopt(zmq.MAXMSGSIZE, wire.MAX_REQUEST_BYTES)
    for uid in sorted(uids):
        socket.setsockopt(zmq.IPC_FILTER_UID, uid)
    socket.bind(endpoint)
    return socket
