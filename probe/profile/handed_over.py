"""The memory of a process that may not be traced, by the descriptor that its agent hands over; and what it says of it.

Called by a reader of stacks where memory_of() finds none.  Whoever holds the descriptor can read the whole job.
Invariant: it is asked for only by processes that face no network, kept as long as they look, and passed on to nobody.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .. import protocol as wire
from ..client import reply_schema
from ..errors import CODES, AgentError, ProbeError, SilentError
from ..host.facts import Facts
from .code_objects import Layout
from .memory import FileMemory

_ANSWER_S = 10.0
_READ_BYTES = 256 << 10
_DESCRIPTOR = struct.Struct("i")
_HELLO, _MEMORY = b"1", b"2"
_REMEDY = "Look as root, or as the user who may attach to it: probe doctor tells."


class Handed(NamedTuple):
    """threads: what the agent knows of each: ident, native_id, name, is_main."""

    memory: FileMemory
    layout: Layout
    threads: Sequence[Mapping[str, Any]]
    facts: Facts


def handed_over(path: str, role: str, name: str, timeout: float = _ANSWER_S) -> Handed:
    """What the agent at this socket hands over.  role: as which it is asked; name: for errors.

    Raises AgentError if it refuses, SilentError if it does not answer.
    """
    with socket.socket(socket.AF_UNIX) as agent:
        agent.settimeout(timeout)
        try:
            agent.connect(path)
            hello = wire.encode(wire.HELLO, protocol=wire.PROTOCOL, role=role, by="stacks")
            agent.sendall(b"".join([*wire.packed([_HELLO, hello]), *wire.packed([_MEMORY, wire.encode(wire.MEMORY)])]))
            return _received(agent, name, time.monotonic() + timeout)
        except OSError as error:
            why = "its agent does not answer" if isinstance(error, TimeoutError) else error.strerror or str(error)
            raise SilentError(f"The memory of {name} may not be read, and {why}.", _REMEDY) from None
        except wire.WireError as error:
            raise AgentError(f"{name} sent a malformed message: {error}.", code="protocol") from None


def _received(agent: socket.socket, name: str, end: float) -> Handed:
    """Raises OSError, WireError, ProbeError."""
    unpacker, facts, memory = wire.Unpacker(wire.MAX_REQUEST_BYTES), None, None
    while time.monotonic() < end:
        # recv_fds() would let what we start inherit it
        data, passed, _, _ = agent.recvmsg(_READ_BYTES, socket.CMSG_SPACE(_DESCRIPTOR.size), socket.MSG_CMSG_CLOEXEC)
        for (file,) in (each for _, _, files in passed for each in _DESCRIPTOR.iter_unpack(files)):
            memory = FileMemory(file)  # the last of several; those before are closed
        if not data:
            raise ConnectionResetError("its agent closes the connection")
        for id, header, *_ in unpacker.feed(data):
            said = wire.decode(header)
            reply_schema.check(said, 0)
            if said["kind"] == wire.ERROR:
                raise _refusal(said, name)
            if id == _HELLO and said["kind"] == wire.WELCOME:
                facts = Facts.parse(said["facts"])
            elif said["kind"] == wire.HANDED and memory is not None and facts is not None:
                return Handed(memory, said["layout"], said["threads"], facts)
            else:
                raise wire.WireError(f"{said['kind'][:40]!r} is no answer")
    raise TimeoutError


def _refusal(said: Mapping[str, Any], name: str) -> ProbeError:
    code = said["code"] if said["code"] in CODES else "agent"
    hint = "If it is of another version, replace it: probe attach PID" if code == "protocol" else ""
    return CODES[code][0](f"{name}: {said['message'].rstrip('.')}.", hint, code)
