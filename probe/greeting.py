"""The first word to every agent: who answers, who does not, and who is not worth waiting for.

Called by probe.connection.  Invariant: every link has its facts afterwards, or why it is silent; a connection of which
nothing can be asked or read is refused.
"""

from __future__ import annotations

import getpass
import os
import time

from . import __version__, memfd
from . import protocol as wire
from .client import Call, Client, Link, nobody, why_silent
from .errors import SilentError
from .processes import is_stopped

_QUIET_S = 3.0  # an agent writes down how it is once a second
_PATIENCE_S = 3.0  # with one that has not; it may come back
_MOMENT_S = 0.02  # an attach stops a thread for some milliseconds


def greet(client: Client, timeout: float) -> None:
    """Raises SilentError where no rank answers and none has memory that could be read."""
    calls: list[Call] = []
    for seconds, links in _by_patience(client.links, timeout).items():
        calls += client.ask(
            wire.HELLO, time.monotonic() + seconds, links, protocol=wire.PROTOCOL, version=__version__, by=whoami()
        )
    for call in calls:
        if call.answer is not None:
            call.link.facts = call.answer["facts"]
            call.link.rank = int(call.link.facts.get("rank") or 0)
        else:
            call.link.silent = call.link.silent or why_silent(call.link.pid)
            call.link.gone |= not isinstance(call.error, SilentError)  # it speaks, but another protocol
    if all(link.gone or (link.silent and not memfd.facts(link.pid)) for link in client.links):
        raise nobody(calls)


def _by_patience(links: list[Link], timeout: float) -> dict[float, list[Link]]:
    """Seconds to wait for the answer -> links, the shortest first."""
    found: dict[float, list[Link]] = {}
    stopped = [link for link in links if is_stopped(link.pid)]
    time.sleep(_MOMENT_S if stopped else 0)
    for link in stopped:
        link.silent = why_silent(link.pid) if is_stopped(link.pid) else ""
    for link in links:
        quiet_s = (time.monotonic_ns() - int(link.facts.get("monotonic_ns") or 0)) / 1e9
        found.setdefault(min(timeout / 2, _PATIENCE_S) if quiet_s > _QUIET_S else timeout, []).append(link)
    return dict(sorted(found.items()))


def whoami() -> str:
    """Who asks, for the others to read in probe.evals."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a uid without a name
        name = str(os.getuid())
    return f"{name}, pid {os.getpid()}"
