"""What an endpoint means: from a pid, or nothing at all, to the agents that answer for it.

Called by every verb and by probe.connect.  An endpoint is the pid of an attached process, or of a process
above attached ones (torchrun): then it stands for all of them.  Invariant: no guess; what is not clear is
an error that lists what there is.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from . import memfd
from .errors import EndpointError
from .processes import descendants

Facts = dict[str, Any]


@dataclass(frozen=True)
class Resolved:
    """endpoint: as one would write it; attached: (pid as seen here, facts) of each agent, by rank."""

    endpoint: str
    attached: list[tuple[int, Facts]]


def resolve(text: str | None = None) -> Resolved:
    """The agents of an endpoint; without one, of the only attached job.  Raises EndpointError."""
    if text is None or not text.strip():
        return _only_job()
    pid = _pid(text.strip())
    said = memfd.facts(pid)
    if said is not None:
        return Resolved(str(pid), [(pid, said)])
    below = [(each, said) for each in descendants(pid)[1:] if (said := memfd.facts(each)) is not None]
    if len({said.get("rank") for _, said in below}) < len(below):
        raise _several(_by_job(below), f"Below pid {pid}")
    if below:
        return Resolved(str(pid), sorted(below, key=_rank))
    raise _absent(pid)


def jobs() -> list[Resolved]:
    """Every attached job on this machine: ranks under one launcher are one job."""
    return _by_job(memfd.attached())


def _by_job(attached: Iterable[tuple[int, Facts]]) -> list[Resolved]:
    found: dict[int, list[tuple[int, Facts]]] = {}
    for pid, said in sorted(attached, key=lambda one: one[0]):
        found.setdefault(_job(pid, said), []).append((pid, said))
    return [Resolved(str(job), sorted(ranks, key=_rank)) for job, ranks in sorted(found.items())]


def address(pid: int, facts: Facts) -> str:
    """The agent's socket as this process reaches it: through the target's own root directory."""
    kind, _, path = str(facts["endpoint"]).partition("://")
    return f"ipc:///proc/{pid}/root{path}" if kind == "ipc" else str(facts["endpoint"])


def _rank(one: tuple[int, Facts]) -> tuple[int, int]:
    return int(one[1].get("rank") or 0), one[0]


def _job(pid: int, said: Facts) -> int:
    """The process that stands for the job: the launcher above a rank, else the process itself."""
    if int(said.get("world_size") or 1) < 2:
        return pid
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            parent = int(file.read().rpartition(b")")[2].split()[1])
    except OSError:
        return pid
    return parent if parent > 1 else pid


def _pid(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 1 << 31:
        hint = "An endpoint is the pid of an attached process, or of the launcher (torchrun) above attached ones."
        raise EndpointError(f"{text!r} is no endpoint.", hint)
    return int(text)


def _only_job() -> Resolved:
    found = jobs()
    if len(found) == 1:
        return found[0]
    if not found:
        raise EndpointError("Nothing is attached.", "Run: probe list, then probe attach PID", "not-attached")
    raise _several(found, "On this machine")


def _several(found: list[Resolved], where: str) -> EndpointError:
    names = "; ".join(f"{job.endpoint} ({_described(job)})" for job in found)
    return EndpointError(f"{where} {len(found)} jobs are attached: {names}.", "Say which one.", "several-jobs")


def _described(job: Resolved) -> str:
    pids = ", ".join(str(pid) for pid, _ in job.attached)
    return f"pid {pids}" if len(job.attached) == 1 else f"{len(job.attached)} ranks: pids {pids}"


def _absent(pid: int) -> EndpointError:
    if not os.path.exists(f"/proc/{pid}"):
        return EndpointError(f"There is no process {pid}.", "Run: probe list")
    try:
        os.listdir(f"/proc/{pid}/fd")
    except PermissionError:
        owner = os.stat(f"/proc/{pid}").st_uid
        return EndpointError(f"Process {pid} belongs to user {owner}.", "Run probe as that user or as root.")
    except OSError:
        return EndpointError(f"Process {pid} is ending.", "Run: probe list")
    return EndpointError(f"No agent in pid {pid}.", f"Run: probe attach {pid}", "not-attached")
