"""Attach to a running process: put the agent into it, and say what it is now.

Called by `probe.cli` and tests.  Importing this costs some milliseconds: no pyarrow, duckdb or zmq.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from ..host import agent_memory
from ..host.processes import has_ended
from ..version import __version__

__all__ = ["Attached", "attach"]


@dataclass(frozen=True)
class Attached:
    """A process with an agent in it.  already: it was there before; version: the agent's; milliseconds: of it all;
    tcp: where other hosts may ask it."""

    pid: int
    rank: int | None
    milliseconds: float
    python: str
    torch: str | None
    already: bool
    version: str
    tcp: str | None = None


def attach(pid: int, timeout: float = 10.0, name: str = "", listen: dict[str, Any] | None = None) -> Attached:
    """Put the agent into the process, unless it is there; name: by which its job is an endpoint from then on; listen:
    at which port other hosts may ask it (Listen.order).

    Raises AttachError, each cause with its own code, after at most `timeout` seconds and a moment; the process then
    is as it was before."""
    began = time.monotonic()
    facts = agent_memory.facts(pid)
    already = facts is not None and facts.get("agent") == __version__
    as_wanted = facts is not None and name in ("", facts.get("name"))
    as_wanted &= listen is None or (facts or {}).get("server_key") == listen["public"]
    if facts is None or not (already and as_wanted):
        # reading the sources is for those who need them
        from .bundle import agent_bundle
        from .delivery import deliver
        from .refusals import broken_off, ended

        try:
            delivered = deliver(pid, agent_bundle(), timeout, wanted={"name": name, "listen": listen})
        except (ConnectionError, EOFError):
            raise ended(pid) if has_ended(pid) else broken_off(pid) from None
        facts, already = {"python": delivered.python, **delivered.reply}, bool(delivered.reply.get("already"))
    return Attached(
        pid=pid,
        rank=facts.get("rank"),
        milliseconds=(time.monotonic() - began) * 1e3,
        python=str(facts.get("python")),
        torch=facts.get("torch"),
        already=already,
        version=str(facts.get("agent", __version__)),
        tcp=facts.get("tcp"),
    )
