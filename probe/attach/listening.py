"""Where a job's server is to listen for other hosts: parses `--listen HOST[:PORT] --key FILE`.

Called by the verb attach.  The address becomes numeric here, so that no name is looked up in a process beside the job.
Invariant: nothing ever listens without a key.
"""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass
from typing import Any

from ..errors import UsageError
from ..keys import VARIABLE, given, read

_PLACE = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+)(?::(\d{1,5}))?")
_EVERYWHERE = {"*": "0.0.0.0", "0.0.0.0": "0.0.0.0", "::": "::"}


@dataclass(frozen=True)
class Listen:
    """Where the job's server listens.  host: as other hosts write it; address: numeric; port: 0 for any; key: the
    server's."""

    host: str
    address: str
    port: int
    key: dict[str, Any]

    def order(self) -> dict[str, Any]:
        """What serve.launch gets."""
        return {**self.key, "host": self.host, "address": self.address, "port": self.port}


def listen(where: str, key_file: str | None) -> Listen:
    """Raises UsageError: listening needs a key, even on loopback, where the server's own socket serves anyway."""
    path = given(key_file)
    if path is None:
        raise UsageError(
            f"--listen {where} needs a key: without one anybody could run code in the job.",
            f"Give --key FILE or set {VARIABLE}; to make one: probe key create FILE", "needs-key",
        )  # fmt: skip
    match = _PLACE.fullmatch(where)
    if not match or not int(match[2] or 1) < 1 << 16:
        raise UsageError(
            f"{where!r} is no address to listen at.", "For example: --listen 0.0.0.0 or --listen node1:29600"
        )
    host = match[1].strip("[]")
    address = _EVERYWHERE.get(host) or _numeric(host)
    shown = os.uname().nodename if host in _EVERYWHERE else match[1]
    return Listen(shown, address, int(match[2] or 0), read(path).of_server())


def _numeric(host: str) -> str:
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not a valid name"
        raise UsageError(f"Cannot listen at {host}: {why}.", "Use an address of this machine.") from error
