"""The agent's socket: who may connect, their messages in, the replies out.

Held by the server, on the agent's thread.  Invariant: no call here waits, no failure of the system (no descriptor, no
memory for buffers) leaves it, and what a client makes us keep is bounded: its unfinished message, its unread replies.
"""

from __future__ import annotations

import _socket
import contextlib
import errno
import os
import select
import time
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Any

from ... import protocol as wire
from ..noop import noop
from ..storage.descriptors import is_same
from .listening import Listener, peer_uid, refuse
from .polled import LOST, Polled

MOST_CLIENTS = 64
_UNREAD_BYTES = 16 << 20  # of one client's replies, unless a single one has more
_UNREAD_BYTES_OF_ALL = 64 << 20
_FEW_BYTES = 128 << 10  # unread, with which a stream may go on
_READ_BYTES = 64 << 10
_MOST_BUFFERS = 64  # of a call of the system
_GREETING_S = 10.0  # to say hello, or to send the rest of a message
_SHORT_OF = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)


class Connection:
    """One client.  role: what it may do, "" until it has said hello."""

    def __init__(self, socket: Any) -> None:
        self.role = ""
        self.socket = socket
        self.unpacker = wire.Unpacker(wire.MAX_CONTROL_BYTES)
        self.unsent: deque[Any] = deque()  # memoryviews
        self.unsent_bytes = 0
        self.heard = time.monotonic()
        self.events = select.POLLIN

    def take_role(self, role: str) -> None:
        """The role stands from the first hello on; no later one changes it.  Raises ValueError for one that is none."""
        if role not in (wire.READ, wire.CONTROL):
            raise ValueError(f"no role {str(role)[:40]!r}")
        if not self.role:
            self.role = role
            if role == wire.CONTROL:
                self.unpacker.limit = wire.MAX_REQUEST_BYTES

    @property
    def is_open(self) -> bool:
        return self.socket is not None

    @property
    def reads(self) -> bool:
        """Whether it keeps up with its replies, so that a stream may go on."""
        return self.unsent_bytes < _FEW_BYTES


class Connections:
    """wake() on any thread, all else on the agent's.  trouble: in words, for facts; listener: where clients connect."""

    def __init__(self, listener: Listener, uids: set[int], take: Callable[[Connection, list[bytes]], None]) -> None:
        """Listen for processes of these users and of root.  take: gets each message that comes.

        Raises OSError.
        """
        self._uids, self._take, self.trouble = {0, *uids}, take, ""
        self._clients: dict[int, Connection] = {}
        self._polled, self._listens, self._spare = Polled(), False, -1
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._eventfd = os.fstat(self._wake)
        self._restore_spare()  # closed for a moment to tell a client that no descriptor is left
        self._polled.add(self._wake, select.POLLIN)
        self.listener = listener
        self._listen(True)

    def wake(self) -> None:
        if self._is_ours(self._wake):
            with contextlib.suppress(OSError):  # closed, or 2^64 - 1 wakes are pending: it is awake
                os.eventfd_write(self._wake, 1)

    def wait(self, milliseconds: int) -> None:
        """Handle what has come, or comes within this time."""
        for descriptor, events in self._polled.wait(milliseconds):
            if events == LOST:
                self._lose(descriptor)
            elif descriptor == self._wake:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._wake)
            elif descriptor == self.listener.socket.fileno():
                self._accept()
            elif (client := self._clients.get(descriptor)) is not None:
                if events & select.POLLOUT:
                    self._flush(client)
                if events & (select.POLLIN | select.POLLHUP | select.POLLERR) and client.is_open:
                    self._read(client)

    def send(self, client: Connection, frames: list[Any]) -> bool:
        """Send a message as far as the client reads; False if it is gone, or has too much unread already."""
        if not client.is_open:
            return False
        buffers = wire.packed(frames)
        size = sum(memoryview(each).nbytes for each in buffers)
        if client.unsent and client.unsent_bytes + size > _UNREAD_BYTES:
            self.drop(client)
            return False
        views = [view for each in buffers if (view := memoryview(each).cast("B"))]
        client.unsent.extend(views)
        client.unsent_bytes += size
        self._flush(client)
        # what is left of memory that others write is copied before they do
        for place in range(-min(len(views), len(client.unsent)), 0):
            if not client.unsent[place].readonly:
                client.unsent[place] = memoryview(bytes(client.unsent[place]))
        return client.is_open

    def maintain(self) -> None:
        """Once a second: go on after a shortage, be there for who comes, drop who keeps silent amid a message or before
        its hello."""
        late = time.monotonic() - _GREETING_S
        for client in list(self._clients.values()):
            if client.heard < late and (not client.role or client.unpacker.unfinished):
                self.drop(client)
            elif not client.events:
                self._flush(client)
        while sum(client.unsent_bytes for client in self._clients.values()) > _UNREAD_BYTES_OF_ALL:
            self.drop(max(self._clients.values(), key=lambda client: client.unsent_bytes))
        self._listen(False)
        self._restore_wake()
        self._restore_spare()
        self.listener.restore()
        self._listen(self._spare >= 0 and self.listener.is_open)
        self.trouble = self.trouble if self._spare < 0 else ""

    def drop(self, client: Connection) -> None:
        """Close the connection; what it has not read is lost."""
        if client.socket is not None:
            del self._clients[client.socket.fileno()]
            self._polled.close(client.socket)
            client.socket = None
            client.unsent.clear()
            client.unsent_bytes = 0

    def close(self, linger_s: float) -> None:
        """Unread replies have this long to be read."""
        self._listen(False)
        end = time.monotonic() + linger_s
        while (left := end - time.monotonic()) > 0 and any(client.unsent for client in self._clients.values()):
            self.wait(max(1, int(left * 1000)))
        for client in list(self._clients.values()):
            self.drop(client)
        self._take = noop  # whoever takes holds this: leave no cycle to the garbage collector
        self.abandon()

    def abandon(self) -> None:
        """In a forked child: close the copies of the parent's descriptors."""
        for client in self._clients.values():
            self._polled.close(client.socket)
        with contextlib.suppress(OSError):
            self.listener.close()
        for descriptor in filter(self._is_ours, (self._wake, self._spare)):
            os.close(descriptor)

    def _is_ours(self, descriptor: int) -> bool:
        return is_same(descriptor, self._eventfd)

    def _lose(self, descriptor: int) -> None:
        if (client := self._clients.get(descriptor)) is not None:
            self.drop(client)
        else:
            self._polled.remove(descriptor)
            self._listens &= descriptor == self._wake

    def _restore_wake(self) -> None:
        if self._wake not in self._polled or not self._is_ours(self._wake):
            with contextlib.suppress(OSError):
                wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
                if self._wake in self._polled and self._wake not in self._clients:
                    self._polled.remove(self._wake)
                self._wake, self._eventfd = wake, os.fstat(wake)
                self._polled.add(wake, select.POLLIN)

    # ---- connections

    def _listen(self, wanted: bool) -> None:
        if wanted and not self._listens:
            self._polled.add(self.listener.socket.fileno(), select.POLLIN)
        elif self._listens and not wanted:
            self._polled.remove(self.listener.socket.fileno())
        self._listens = wanted

    def _accept(self) -> None:
        for _ in range(16):
            try:
                descriptor, _address = self.listener.socket._accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _SHORT_OF:
                    self._turn_away(error)
                return
            self._admit(_socket.socket(fileno=descriptor))

    def _admit(self, socket: Any) -> None:
        socket.setblocking(False)
        if (uid := peer_uid(socket)) not in self._uids:
            refuse(socket, "refused", f"belongs to another user, and refuses you (uid {uid})")
        elif len(self._clients) >= MOST_CLIENTS:
            refuse(socket, "full", f"has {MOST_CLIENTS} clients already, and takes no more")
        else:
            self._clients[socket.fileno()] = client = Connection(socket)
            self._polled.add(socket.fileno(), client.events)

    def _turn_away(self, error: OSError) -> None:
        """No descriptor or memory for a connection: tell the client with the spare one, then wait for better times."""
        self.trouble = f"{wire.NO_READER}: {os.strerror(error.errno or 0)}"
        told = False
        if self._is_ours(self._spare):
            os.close(self._spare)
            self._spare = -1
            with contextlib.suppress(OSError):
                descriptor, _ = self.listener.socket._accept()
                refuse(_socket.socket(fileno=descriptor), "no-room", f"has no room for a connection: {error.strerror}")
                told = True
        self._restore_spare()
        self._listen(told and self._spare >= 0)  # or it would come at once again

    def _restore_spare(self) -> None:
        if not self._is_ours(self._spare):
            self._spare = -1
            with contextlib.suppress(OSError):
                self._spare = os.dup(self._wake)

    # ---- messages

    def _read(self, client: Connection) -> None:
        try:
            data = client.socket.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            data = b""
            if error.errno in _SHORT_OF:
                self._pause(client)
                return
        if not data:
            self.drop(client)
            return
        client.heard = time.monotonic()
        try:
            for message in client.unpacker.feed(data):
                if client.is_open:
                    self._take(client, message)
        except wire.WireError:
            self.drop(client)

    def _flush(self, client: Connection) -> None:
        """Send what the client takes."""
        try:
            if self._polled.is_lost(client.socket.fileno()):
                raise OSError(errno.EBADF, "")
            while client.unsent:
                sent = client.socket.sendmsg(list(islice(client.unsent, _MOST_BUFFERS)), [], _socket.MSG_NOSIGNAL)
                client.unsent_bytes -= sent
                while sent:
                    first = client.unsent.popleft()
                    if sent < len(first):
                        client.unsent.appendleft(first[sent:])
                    sent -= min(sent, len(first))
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            if error.errno in _SHORT_OF:
                self._pause(client)
            else:
                self.drop(client)
            return
        self._watch(client)

    def _pause(self, client: Connection) -> None:
        """Until the next second: the kernel has no memory for it, and would say so again at once."""
        client.events = 0
        self._polled.change(client.socket.fileno(), 0)

    def _watch(self, client: Connection) -> None:
        """A client that does not read its replies is not read either."""
        events = select.POLLOUT if client.unsent else 0
        if client.unsent_bytes < _UNREAD_BYTES // 2:
            events |= select.POLLIN
        if events != client.events:
            client.events = events
            self._polled.change(client.socket.fileno(), events)
