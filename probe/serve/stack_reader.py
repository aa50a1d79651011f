"""The process that reads stacks for the server, out of the memory of the agents' processes.

Started by stacks, which sends one request after the other.  Invariant: it has no port and no key, and no socket but
that of the server and, for a moment, of an agent; it ends with the server.
"""

from __future__ import annotations

import socket
from typing import Any

from .. import protocol as wire
from ..client.endpoints import address_of
from ..errors import ProbeError, SilentError
from ..host import agent_memory
from ..host.processor_use import loads
from ..snapshot.live_stacks import handed_stacks, read_stacks
from ..snapshot.stacks import told, trains
from .confinement import confine, memory_share
from .handover import IPC, STACKS

_READ_BYTES = 64 << 10
_ANSWER_S = 2.0  # for an agent that is asked for its memory; others wait meanwhile


def answer(request: dict[str, Any]) -> bytes:
    """The header of the reply."""
    pid = request["pid"]
    try:
        facts = agent_memory.facts(pid)
        if facts is None or facts.id != request["id"]:
            raise SilentError("it has ended, or was detached", code="gone")
        threads = read_stacks(pid)
        if threads is None:
            threads = handed_stacks(address_of(pid, facts).url, wire.CONTROL, f"process {pid}", _ANSWER_S)
        load = loads({pid: trains(threads)}).get(pid)
        return wire.encode(wire.FRAMES, threads=[told(thread) for thread in threads], load=load and load.told())
    except ProbeError as error:
        return wire.encode(wire.ERROR, code=error.code, message=str(error))


def main() -> None:
    """Of the process that the server starts."""
    confine(STACKS, memory_share())
    server, unpacker = socket.socket(fileno=IPC), wire.Unpacker(wire.MAX_CONTROL_BYTES)
    while data := server.recv(_READ_BYTES):
        for number, header in unpacker.feed(data):
            server.sendall(b"".join(wire.packed([number, answer(wire.decode(header))])))
