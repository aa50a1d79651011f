"""Attach to a running process: put the agent into it, or refuse with the reason.

Here is what attaching means for the user: the entry points, the agent's sources, the rendezvous, refusals and the
doctor; `inject` stops a thread and makes it run our text.  The room may import the leaves and `host`.  Importing it
costs some milliseconds: no pyarrow, duckdb or zmq.

Invariant: an attach that fails or is interrupted leaves the process as it was, and nothing starts in it later.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import AGAIN, AttachError
from ..host import agent_memory
from ..host.facts import Facts
from ..host.file_limits import make_room
from ..host.processes import has_ended
from ..version import __version__

__all__ = ["Attached", "attach", "start"]
_PATIENCE_S = 10.0  # of start(), while another attach is under way


@dataclass(frozen=True)
class Attached:
    """A process with an agent in it.  already: the agent was there before; version: of the agent; milliseconds: for
    the whole attach; tcp: where other hosts can query it; taps: the state of each tap by name; renamed: the new
    name of a job that had an agent.

    Example: `from probe.attach import attach; attach(4242).torch`
    """

    pid: int
    rank: int | None
    milliseconds: float
    python: str
    torch: str | None
    already: bool
    version: str
    tcp: str | None = None
    taps: Mapping[str, str] = field(default_factory=dict)
    renamed: str = ""


def attach(
    pid: int, timeout: float = 10.0, name: str = "", served: Mapping[str, Any] | None = None, devices: bool = True
) -> Attached:
    """Put the agent into the process, unless it is there.  name: makes the job an endpoint of that name; served: what
    it has to know of its job's server (serve.launch.Prepared), if there is one; devices: False leaves GPUs and NCCL
    alone.

    Raises AttachError, each cause with its own code, after little more than `timeout` seconds, or EndpointError if this
    process may open too few files; the target then is as it was before."""
    began = time.monotonic()
    facts = known = agent_memory.facts(pid)
    already = (
        facts is not None
        and facts.version == __version__
        and name in ("", facts.name)
        and (served is None or facts.server == served["server"])
    )
    if facts is not None and facts.devices and not devices:
        from .refusals import refusal

        raise refusal("has-devices", pid)
    if facts is None or not already:
        reply = _delivered(pid, timeout, {"name": name, "served": served, "devices": devices})
        facts, already = Facts.parse(reply), bool(reply.get("already"))
    return Attached(
        pid=pid,
        rank=facts.rank,
        milliseconds=(time.monotonic() - began) * 1e3,
        python=str(facts.python),
        torch=facts.torch,
        already=already,
        version=facts.version or __version__,
        tcp=facts.tcp,
        taps=facts.taps,
        renamed=name if known is not None and name not in ("", known.name) else "",
    )


def _delivered(pid: int, timeout: float, wanted: dict[str, Any]) -> dict[str, Any]:
    """What the agent says, which is put there or takes up what is wanted."""
    from .bundle import agent_bundle  # reads the sources, so only where they are needed
    from .delivery import deliver
    from .refusals import refusal

    make_room(1)
    try:
        delivered = deliver(pid, agent_bundle(), timeout, wanted)
    except (ConnectionError, EOFError):
        if has_ended(pid):
            raise refusal("target-ended", pid) from None
        raise AttachError(f"Process {pid} broke off the attach.", AGAIN.format(pid=pid), "agent-failed") from None
    return {"python": delivered.python, **delivered.reply}


def start() -> None:
    """Put the agent into this process, unless it is there; its pid is the endpoint from then on.

    For jobs that nobody may trace but to which one line can be added.  Any thread.  `probe PID detach` removes it.
    Raises whatever keeps the agent from starting.  Cost: some 50 ms, then that of an attached agent.

    Example: `import probe; probe.start()`
    """
    from .bootstrap import PATCHED, START
    from .bundle import agent_bundle, digest, packed, pynvml_path
    from .refusals import check_interpreter, refusal

    check_interpreter(os.getpid(), sys.version_info[:3], sys.abiflags)
    # the code, the sources and the name of an attach, so that a later attach finds the agent
    scope: dict[str, Any] = {"__name__": "_probe_bootstrap"}
    exec(PATCHED + START, scope)
    if scope["_is_patched"]():
        raise refusal("monkey-patched", os.getpid())
    facts = {"uid": os.geteuid(), "version": __version__, "pynvml_path": pynvml_path()}
    bundle = agent_bundle()
    order = {"digest": digest(bundle, __version__), "modules": packed(bundle, same_bytecode=True)}
    scope["_start"]({"patience": _PATIENCE_S, "facts": facts, **order})
