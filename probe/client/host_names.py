"""The numeric addresses of hosts that a job's records name.

Called by handshake.  libzmq would look names up on the one thread that moves all its traffic, and try again for ever
where there is none, without a word.  Invariant: whoever asks waits no longer than the deadline, however slow the
resolver is.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterable
from queue import Empty, SimpleQueue

_AT_ONCE = 32  # look-ups


def numeric(hosts: Iterable[str], deadline: float) -> dict[str, str]:
    """host -> its address, IPv4 if it has one; without those that have none, or for which none has come in time."""
    wanted, found = SimpleQueue[str](), SimpleQueue[tuple[str, str]]()
    names = set(hosts)
    for name in names:
        wanted.put(name)

    def look_up() -> None:
        try:
            while True:
                name = wanted.get_nowait()
                found.put((name, _address(name)))
        except Empty:
            pass

    for _ in range(min(len(names), _AT_ONCE)):
        threading.Thread(target=look_up, name="host-names", daemon=True).start()
    told = dict[str, str]()
    try:
        while len(told) < len(names):
            name, address = found.get(timeout=max(0.0, deadline - time.monotonic()))
            told[name] = address
    except Empty:
        pass
    return {name: address for name, address in told.items() if address}


def in_numbers(url: str, address: str) -> str:
    """This tcp:// url with the address in place of its host."""
    return f"tcp://{f'[{address}]' if ':' in address else address}:{url.rpartition(':')[2]}"


def _address(name: str) -> str:
    """ "" if it has none."""
    try:
        known = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # the latter if it is no name
        return ""
    by_family = sorted(known, key=lambda each: each[0] != socket.AF_INET)
    return str(by_family[0][4][0])
