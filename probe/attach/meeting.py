"""The target's connection to the command, from the moment at which the text was planted.

Used by `delivery`.  Every wait ends at the deadline of the whole attach, or at once when the
target ends.
"""

from __future__ import annotations

import errno
import json
import os
import select
import socket
import struct
import time
from types import TracebackType
from typing import Any

from . import refusals
from .withdrawal import Withdrawal

MAX_HELLO_BYTES = 65536
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


class TooLate(Exception):
    """The deadline passed."""


class Meeting:
    """A context manager; leaving it closes the connection, after which the target knows that nobody waits."""

    def __init__(self, pid: int, deadline: float, withdrawal: Withdrawal) -> None:
        """deadline: monotonic.  Raises AttachError when the target is gone."""
        self._pid = pid
        self._withdrawal = withdrawal
        self._deadline = deadline
        self._connection: socket.socket | None = None
        try:
            self._ended = os.pidfd_open(pid)
        except ProcessLookupError:
            raise refusals.ended(pid) from None
        except OSError as error:
            if error.errno == errno.ENOSYS:  # as new as PTRACE_GET_SYSCALL_INFO, which comes later
                raise refusals.old_kernel() from None
            raise

    @property
    def left_seconds(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    def accept(self, listener: socket.socket, key: str) -> dict[str, Any]:
        """The target's hello; anybody else is turned away.  Raises TooLate, Withdrawn or AttachError."""
        while True:
            self._wait(listener, select.POLLIN)
            connection, _ = listener.accept()
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            if _CREDENTIALS.unpack(credentials)[0] == self._pid:
                self._connection = connection
                hello = json.loads(self._receive_line())
                if hello["key"] == key:
                    return dict(hello)
            connection.close()

    def send(self, data: bytes) -> None:
        connection = self._connected()
        connection.setblocking(False)
        view = memoryview(data)
        while view:
            self._wait(connection, select.POLLOUT)
            view = view[connection.send(view) :]

    def receive_all(self) -> bytes:
        """Until the target closes the connection."""
        answer = bytearray()
        while part := self._receive():
            answer += part
        return bytes(answer)

    def _receive_line(self) -> bytes:
        line = bytearray()
        while not line.endswith(b"\n"):
            part = self._receive()
            if not part or len(line) > MAX_HELLO_BYTES:
                raise refusals.ended(self._pid)
            line += part
        return bytes(line)

    def _receive(self) -> bytes:
        connection = self._connected()
        self._wait(connection, select.POLLIN)
        return connection.recv(MAX_HELLO_BYTES)

    def _connected(self) -> socket.socket:
        assert self._connection is not None
        return self._connection

    def _wait(self, connection: socket.socket, event: int) -> None:
        poll = select.poll()
        poll.register(connection, event)
        poll.register(self._ended, select.POLLIN)
        ready = dict(self._withdrawal.poll(poll, self._deadline))
        if connection.fileno() in ready:  # also what the target said right before its end
            return
        raise refusals.ended(self._pid) if ready else TooLate()

    def __enter__(self) -> Meeting:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._connection:
            self._connection.close()
        os.close(self._ended)
