"""One attach, from the first look at the process to the agent's answer: inject, connect, hand over.

Called by `attach` with the agent's sources, by tests with sources of their own.  Every wait ends at the deadline, or at
once when the target ends.  Whatever fails, the rendezvous is gone when this returns, so nothing starts later in a
target that was given up.
"""

from __future__ import annotations

import errno
import importlib.util
import json
import math
import os
import re
import select
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

from ..errors import AttachError
from ..host.process_status import native_threads, thread_ids, told_together
from ..host.processes import has_ended
from ..host.system_calls import pidfd_open
from ..version import __version__
from . import refusals
from .bootstrap import START, bootstrap_text
from .bundle import Part, digest, packed, pynvml_path
from .deferred_signals import DeferredSignals
from .gil_holder import describe_holder_in
from .inject.injection import THREAD, Injected
from .inject.target import Target, examine
from .inject.tracer import injected_from_child
from .refusals import check_interpreter, refusal
from .rendezvous import Rendezvous

SEARCH_SHARE = 0.7  # of the time-out, for finding a thread at a safe point
FIRST_PAUSE_S = 0.05  # for the hello of an injected thread that has ended, before another one is injected
ANSWER_SECONDS = 0.5  # of the deadline, kept for the target's refusal to travel
MAX_HELLO_BYTES = 65536
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_WITH_DETAIL = ("main-thread-busy", "attach-running", "no-memory", "no-descriptors", "file-size")


@dataclass(frozen=True)
class Delivered:
    """reply: what the agent's start() returned; python: the target's version; hello_ms: until it ran our text."""

    reply: dict[str, Any]
    python: str
    injected: Injected
    hello_ms: float


def deliver(pid: int, bundle: Sequence[Part], timeout: float, wanted: Mapping[str, Any] | None = None) -> Delivered:
    """wanted: arguments of the agent's start().  Raises AttachError, after little more than `timeout` seconds."""
    began = time.monotonic()
    deadline = began + timeout
    with (
        DeferredSignals() as signals,
        closing(examine(pid)) as target,
        closing(Rendezvous(pid, target.status)) as rendezvous,
        closing(_TargetConnection(pid, deadline, signals)) as connection,
    ):
        key = os.urandom(16).hex()
        text = bootstrap_text(rendezvous.path, key)
        injected, hello = _injected(target, text, rendezvous, connection, key, began, timeout, signals)
        hello_ms = (time.monotonic() - began) * 1e3
        if hello.get("patched"):
            raise refusal("monkey-patched", pid)
        check_interpreter(pid, hello["version"], hello["abiflags"])
        try:
            connection.send(_order(bundle, hello, connection.seconds_left, wanted or {}))
            answer = connection.receive_answer()
        except _TooLate:
            raise refusal("attach-timeout", pid, timeout=timeout) from None
        return Delivered(_reply(pid, answer, hello), ".".join(map(str, hello["version"])), injected, hello_ms)


def _injected(
    target: Target, text: bytes, rendezvous: Rendezvous, connection: _TargetConnection, key: str, began: float,
    timeout: float, signals: DeferredSignals,
) -> tuple[Injected, dict[str, Any]]:  # fmt: skip
    """Inject, until the target says hello.  The interpreter of a process that has just started runs nothing yet: then
    the injected thread has ended without a word, and another one is."""
    search_ends, pause = began + SEARCH_SHARE * timeout, FIRST_PAUSE_S
    while True:
        with injected_from_child(target, text, search_ends, signals) as injected:
            is_over = False
            while not is_over:
                try:
                    return injected, connection.accept(rendezvous.listener, key, pause)
                except _TooLate:
                    if not connection.seconds_left:
                        raise _no_hello(target, injected, timeout) from None
                    is_over = time.monotonic() + pause < search_ends and _has_ended(injected, target.pid)
        pause *= 2


def _order(bundle: Sequence[Part], hello: dict[str, Any], seconds: float, wanted: Mapping[str, Any]) -> bytes:
    """What the target needs to start the agent, with its length in front."""
    code = digest(bundle, __version__)
    same_bytecode = hello["magic"] == importlib.util.MAGIC_NUMBER.hex()
    order = {
        "patience": max(0.1, seconds - ANSWER_SECONDS),
        "facts": {**wanted, "version": __version__, "pynvml_path": pynvml_path()},
        "digest": code,
        "start": packed([Part("bootstrap", False, START)], same_bytecode)[0],
        "modules": [] if hello["has"] == code else packed(bundle, same_bytecode),
    }
    text = json.dumps(order).encode()
    return len(text).to_bytes(8, "little") + text


def _reply(pid: int, answer: bytes, hello: dict[str, Any]) -> dict[str, Any]:
    """The agent's reply.  Raises the AttachError that the target sent instead."""
    kind, text = answer[:2], answer[2:]
    if kind == b"OK":
        return dict(json.loads(text))
    if kind != b"ER":
        raise refusal("target-ended", pid) if has_ended(pid) else refusal("agent-failed", pid, why="it sent no answer")
    code, detail = json.loads(text)
    if code in _WITH_DETAIL:
        raise refusal(code, pid, why=detail)
    places = re.findall(r'File "([^"]+)", line (\d+)', detail)  # a traceback: the exception, and where it was raised
    why = detail.strip().rpartition("\n")[2] + (f" ({places[-1][0]}:{places[-1][1]})" if places else "")
    raise refusal("agent-failed", pid, why=why)


def _has_ended(injected: Injected, pid: int) -> bool:
    with suppress(OSError):  # the process has, which whoever waits for it is told
        return injected.way == THREAD and injected.thread not in thread_ids(pid)
    return False


def _no_hello(target: Target, injected: Injected, timeout: float) -> AttachError:
    pid = target.pid
    if injected.way != THREAD:
        why = f"its main thread did not reach Python code within {timeout:g} s"
        return refusal("main-thread-busy", pid, why=why)
    if has_ended(pid):
        return refusal("target-ended", pid)
    if injected.thread not in thread_ids(pid):
        return refusal("no-connection", pid)
    holder = describe_holder_in(target)
    if not holder:
        holder = f"one of its threads holds the GIL: {'; '.join(told_together(native_threads(pid)))}"
    return refusal("gil-held", pid, timeout=timeout, holder=holder)


class _TooLate(Exception):
    """The deadline passed."""


class _TargetConnection:
    """On which the target answers once it runs the injected text.  Closing it says that the command no longer waits."""

    def __init__(self, pid: int, deadline: float, signals: DeferredSignals) -> None:
        """deadline: monotonic.  Raises AttachError when the target is gone."""
        self._pid, self._deadline, self._signals = pid, deadline, signals
        try:
            self._ended = pidfd_open(pid)
        except ProcessLookupError:
            raise refusal("target-ended", pid) from None
        except OSError as error:
            if error.errno == errno.ENOSYS:  # Linux 5.3, as is what ptrace needs
                raise refusals.old_kernel() from None
            raise
        self._socket = socket.socket(socket.AF_UNIX)  # until accept() has the target's

    @property
    def seconds_left(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    def accept(self, listener: socket.socket, key: str, within: float) -> dict[str, Any]:
        """The target's hello; any other client is turned away.  Raises _TooLate, SignalPending or AttachError."""
        ends = time.monotonic() + within
        while True:
            self._wait(listener, select.POLLIN, ends)
            self._socket.close()
            self._socket, _ = listener.accept()
            credentials = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            if _CREDENTIALS.unpack(credentials)[0] == self._pid:
                hello = json.loads(self._receive_line())
                if hello["key"] == key:
                    return dict(hello)
            self._socket.close()

    def send(self, data: bytes) -> None:
        self._socket.setblocking(False)
        view = memoryview(data)
        while view:
            self._wait(self._socket, select.POLLOUT)
            view = view[self._socket.send(view) :]

    def receive_answer(self) -> bytes:
        """A line, or what came of it before the target closed the connection: that may wait for the GIL."""
        answer = bytearray()
        while not answer.endswith(b"\n") and (part := self._receive()):
            answer += part
        return bytes(answer)

    def close(self) -> None:
        self._socket.close()
        os.close(self._ended)

    def _receive_line(self) -> bytes:
        line = bytearray()
        while not line.endswith(b"\n"):
            part = self._receive()
            if not part or len(line) > MAX_HELLO_BYTES:
                raise refusal("target-ended", self._pid)
            line += part
        return bytes(line)

    def _receive(self) -> bytes:
        self._wait(self._socket, select.POLLIN)
        return self._socket.recv(MAX_HELLO_BYTES)

    def _wait(self, waiting: socket.socket, event: int, ends: float = math.inf) -> None:
        poll = select.poll()
        poll.register(waiting, event)
        poll.register(self._ended, select.POLLIN)
        ready = dict(self._signals.poll(poll, min(ends, self._deadline)))
        if waiting.fileno() in ready:  # also what the target sent right before it ended
            return
        raise refusal("target-ended", self._pid) if ready else _TooLate()
