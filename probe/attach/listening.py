"""Where an agent is to listen for other hosts, as `--listen HOST[:PORT] --key FILE` says it.

Used by attach.  The agent gets an address in numbers, so that nothing is looked up inside a training process.
Invariant: nothing is ever asked to listen without a key.
"""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass
from typing import Any

from ..errors import AttachError, UsageError
from ..keys import VARIABLE, given, read

_PLACE = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+)(?::(\d{1,5}))?")
_EVERYWHERE = {"*": "0.0.0.0", "0.0.0.0": "0.0.0.0", "::": "::"}


@dataclass(frozen=True)
class Listen:
    """host: as others would write it; address: in numbers; port: of the first rank, 0 for any; key: of the agent."""

    host: str
    address: str
    port: int
    key: dict[str, Any]

    def order(self, place: int) -> dict[str, Any]:
        """What the agent of the place-th process is told: ranks of one host take one port after the other."""
        return {**self.key, "host": self.host, "address": self.address, "port": self.port and self.port + place}


def listen(where: str, key_file: str | None) -> Listen:
    """Raises UsageError: there is no listening without a key, nor on loopback, where an agent's own socket serves."""
    path = given(key_file)
    if path is None:
        raise UsageError(
            f"--listen {where} asks for a key: without one anybody could run code in the job.",
            f"Give --key FILE or set {VARIABLE}; to make one: probe key create FILE", "needs-key",
        )  # fmt: skip
    match = _PLACE.fullmatch(where)
    if not match or not int(match[2] or 1) < 1 << 16:
        raise UsageError(
            f"{where!r} is no place to listen at.", "For example: --listen 0.0.0.0 or --listen node1:29600"
        )
    host = match[1].strip("[]")
    address = _EVERYWHERE.get(host) or _in_numbers(host)
    shown = os.uname().nodename if host in _EVERYWHERE else match[1]
    return Listen(shown, address, int(match[2] or 0), read(path).of_agent())


def refused(pid: int, code: str, detail: str) -> AttachError:
    """What the agent's refusal to listen says."""
    remedy = {
        "port-in-use": "Leave the port out and take any free one: --listen HOST",
        "other-key": f"Take that key, or first: probe {pid} detach",
        "cannot-listen": "Take an address of this machine: ip -brief address",
    }
    return AttachError(f"Process {pid} {detail}.", remedy[code], code)


def _in_numbers(host: str) -> str:
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no name"
        raise UsageError(f"{host} cannot be listened at: {why}.", "Take an address of this machine.") from error
