"""What an attacker of the server beside a job has: clients of plain pyzmq and plain sockets."""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import zmq

from probe import keys
from probe.host import agent_memory

HELLO = b"\xff" + bytes(8) + b"\x7f\x03\x01NULL" + bytes(16) + b"\0" + bytes(31)


def anonymous_kb(pid: int) -> int:
    """The least over half a second, without what is shared: rows go on being recorded."""
    looks = []
    for _ in range(10):
        found = re.search(r"RssAnon:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
        assert found is not None
        looks.append(int(found[1]))
        time.sleep(0.05)
    return min(looks)


class Attacker:
    """path: of the server's socket; port: where it listens for other hosts; agent_path: of the agent's own socket."""

    def __init__(self, pid: int, key: Path) -> None:
        """key: the file that it has for the port."""
        facts = agent_memory.facts(pid)
        assert facts is not None
        self.path, self.port = str(facts.server).removeprefix("ipc://"), int(str(facts.tcp).rpartition(":")[2])
        self.agent, self.agent_path = str(facts.id).encode(), str(facts.endpoint)
        self._key = keys.read(str(key))

    @contextlib.contextmanager
    def dealer(self, tcp: bool = False, **options: Any) -> Iterator[Any]:
        context = zmq.Context()
        made = context.socket(zmq.DEALER)
        made.linger, made.sndhwm, made.rcvtimeo = 0, 0, 2000
        if tcp:
            made.curve_serverkey = self._key.server_public.encode()
            made.curve_publickey, made.curve_secretkey = (text.encode() for text in self._key.client)
        for name, value in options.items():
            setattr(made, name, value)
        made.connect(f"tcp://127.0.0.1:{self.port}" if tcp else f"ipc://{self.path}")
        try:
            yield made
        finally:
            context.destroy(0)

    def raw(self, identity: bytes = b"") -> socket.socket:
        """A connection that has said hello as a DEALER."""
        made = socket.socket(socket.AF_UNIX)
        made.settimeout(2)
        made.connect(self.path)
        said = struct.pack(">I", len(identity)) + identity
        made.sendall(HELLO + command(b"\x05READY\x0bSocket-Type\0\0\0\x06DEALER\x08Identity" + said))
        return made


def command(body: bytes) -> bytes:
    return b"\x04" + bytes([len(body)]) + body
