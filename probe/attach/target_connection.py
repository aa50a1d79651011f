"""The connection on which the target answers once it runs the injected text.

Used by `delivery`.  Every wait ends at the deadline of the whole attach, or at once when the target ends.
"""

from __future__ import annotations

import errno
import json
import os
import select
import socket
import struct
import time
from typing import Any

from .deferred_signals import DeferredSignals
from .refusals import old_kernel, refusal

MAX_HELLO_BYTES = 65536
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


class TooLate(Exception):
    """The deadline passed."""


class TargetConnection:
    """Closing it tells the target that the command no longer waits."""

    def __init__(self, pid: int, deadline: float, signals: DeferredSignals) -> None:
        """deadline: monotonic.  Raises AttachError when the target is gone."""
        self._pid, self._deadline, self._signals = pid, deadline, signals
        try:
            self._ended = os.pidfd_open(pid)
        except ProcessLookupError:
            raise refusal("target-ended", pid) from None
        except OSError as error:
            if error.errno == errno.ENOSYS:  # Linux 5.3, as is what ptrace needs
                raise old_kernel() from None
            raise
        self._socket = socket.socket(socket.AF_UNIX)  # until accept() has the target's

    @property
    def seconds_left(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    def accept(self, listener: socket.socket, key: str) -> dict[str, Any]:
        """The target's hello; any other client is turned away.  Raises TooLate, SignalPending or AttachError."""
        while True:
            self._wait(listener, select.POLLIN)
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

    def receive_all(self) -> bytes:
        """All that comes until the target closes the connection."""
        return b"".join(iter(self._receive, b""))

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

    def _wait(self, waiting: socket.socket, event: int) -> None:
        poll = select.poll()
        poll.register(waiting, event)
        poll.register(self._ended, select.POLLIN)
        ready = dict(self._signals.poll(poll, self._deadline))
        if waiting.fileno() in ready:  # also what the target sent right before it ended
            return
        raise refusal("target-ended", self._pid) if ready else TooLate()
