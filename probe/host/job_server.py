"""Where the server of an agent's job is reached from here.

Called by client.ways and by serve.jobs.  Invariant: a path is only given if something listens there.
"""

from __future__ import annotations

import socket

from ..settings import may_serve
from .facts import Facts

_MOST_PATH = 107  # bytes of a socket's path


def server_url(pid: int, facts: Facts) -> str:
    """The url of the server of an agent in this process; "" if none listens, or none is wanted."""
    path = (facts.server or "").partition("://")[2] if may_serve() else ""
    for each in (path, f"/proc/{pid}/root{path}") if path else ():
        if len(each) <= _MOST_PATH and _listens(each):
            return f"ipc://{each}"
    return ""


def _listens(path: str) -> bool:
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.setblocking(False)
            made.connect(path)
        return True
    except OSError:
        return False
