"""The memory of this process, for a reader of stacks that may not trace it: a descriptor that can only read.

Called by the server, on the agent's thread.  Invariant: it goes over this host's own socket to processes of the job's
user or root, in connections that may control; the server beside the job passes no request for it on; nothing is kept.
"""

from __future__ import annotations

import _socket
import os
import struct
from collections.abc import Mapping
from typing import Any

from ... import protocol as wire
from .listening import peer_uid
from .profiles import Profiles
from .server import Key, Refused, Server

_MOST_THREADS, _NAME_CHARACTERS = 256, 100  # told, so that the message fits into an empty socket


class OwnMemory:
    """threads: what is told of each, by ident."""

    def __init__(self, server: Server, profiles: Profiles, threads: Mapping[int, Mapping[str, Any]]) -> None:
        self._server, self._profiles, self._threads = server, profiles, threads
        server.handlers[wire.MEMORY] = self.hand_over

    def hand_over(self, key: Key, request: dict[str, Any], payload: Any) -> None:
        if (uid := peer_uid(key[0].socket)) not in (0, os.geteuid()):
            raise Refused("read-only", f"its memory is shown to its own user and to root, not to uid {uid}")
        said = wire.encode(wire.HANDED, layout=self._profiles.found_layout(), threads=self._told())
        file = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._send(key, said, file)
        finally:
            os.close(file)

    def _told(self) -> list[dict[str, Any]]:
        """The main thread first, then the newest."""
        newest_first = list(self._threads.items())[::-1]
        known = sorted(newest_first, key=lambda one: not one[1]["is_main"])[:_MOST_THREADS]
        return [{"ident": ident, **said, "name": str(said["name"])[:_NAME_CHARACTERS]} for ident, said in known]

    def _send(self, key: Key, header: bytes, file: int) -> None:
        """At once or not at all: a descriptor travels with the bytes of one call."""
        client, id = key
        if client.unsent:
            raise Refused("agent", "replies that were not read are in the way of its memory")
        message = b"".join(wire.packed([id, header]))
        passed = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, struct.pack("i", file))]
        if client.socket.sendmsg([message], passed, _socket.MSG_NOSIGNAL) < len(message):
            self._server.connections.drop(client)
