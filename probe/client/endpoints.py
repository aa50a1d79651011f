"""What an endpoint means: from what a user writes, or from nothing at all, to where the agents for it are asked.

Called by every verb and by probe.connect.  FORMS is what there is.  Invariant: no guess; what is not clear is an error
that lists what there is.  Nothing here touches a network: that a port answers is found out by who connects.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ..errors import EndpointError
from ..host import agent_memory
from ..host.processes import descendants

Facts = dict[str, Any]

FORMS = "a pid (torchrun's, too), a name, ipc://PATH, tcp://HOST:PORT, job://HOST:PORT, or several with commas"
_NAME = re.compile(r"(?!-)[^\s:/,]+")  # none can be taken for another form, or an option
_PORT = re.compile(r"(\[[0-9A-Fa-f:.%\w]+\]|[^\s:/\[\]]+):(\d{1,5})")


@dataclass(frozen=True)
class Address:
    """Where one agent is asked.  url: for zmq; pid: as this machine sees it, 0 where the agent alone can tell; facts:
    what is known of it beforehand; whole_job: it is asked for all the others of its job."""

    url: str
    pid: int = 0
    facts: Facts = field(default_factory=dict)
    whole_job: bool = False
    shown: str = ""  # as it was written, where url is not


@dataclass(frozen=True)
class Resolved:
    """endpoint: as one would write it; addresses: of each agent, by rank where that is known."""

    endpoint: str
    addresses: list[Address]


def resolve(text: str | None = None) -> Resolved:
    """The agents of an endpoint; without one, of the only attached job.  Raises EndpointError."""
    if text is None or not text.strip():
        return _only_job()
    parts = list(dict.fromkeys(part.strip() for part in text.split(",")))
    found = {address.url: address for part in parts for address in _addresses(part)}
    return Resolved(",".join(parts), list(found.values()))


def jobs() -> list[Resolved]:
    """Every attached job on this machine: ranks under one launcher are one job."""
    return _by_job(_attached())


def is_name(text: str) -> bool:
    """Whether an attached job may be called so: it must not look like any other form of endpoint."""
    return bool(_NAME.fullmatch(text)) and not text.isdigit()


def host_and_port(text: str) -> tuple[str, int] | None:
    """Of `HOST:PORT`, where HOST may be an IPv6 address in brackets; None if it is not that."""
    match = _PORT.fullmatch(text)
    return (match[1].strip("[]"), int(match[2])) if match and 0 < int(match[2]) < 1 << 16 else None


def _addresses(text: str) -> list[Address]:
    scheme, _, place = text.partition("://")
    if text.isdecimal() and 0 < int(text) < 1 << 31:
        return _of_pid(int(text))
    if scheme == "ipc" and place:
        return [Address(text)]
    if scheme in ("tcp", "job") and host_and_port(place):
        return [Address(f"tcp://{place}", whole_job=scheme == "job")]
    return _named(text) if is_name(text) else _no_form(text)


def _of_pid(pid: int) -> list[Address]:
    said = agent_memory.facts(pid)
    if said is not None:
        return [_address(pid, said)]
    below = [_address(each, said) for each in descendants(pid)[1:] if (said := agent_memory.facts(each)) is not None]
    if not below:
        raise _absent(pid)
    return _one_job(below, f"Below pid {pid}")


def _named(name: str) -> list[Address]:
    everyone = list(_attached())
    found = [address for address in everyone if address.facts.get("name") == name]
    if not found:
        names = sorted({str(address.facts["name"]) for address in everyone if address.facts.get("name")})
        known = f"Named are: {', '.join(names)}." if names else f"An endpoint is {FORMS}."
        raise EndpointError(f"{name!r} is no endpoint: nothing that is attached here bears this name.", known)
    return _one_job(found, f"By the name {name}")


def _one_job(found: list[Address], where: str) -> list[Address]:
    """By rank.  Raises EndpointError if two have the same."""
    if len({address.facts.get("rank") for address in found}) < len(found):
        raise _several(_by_job(found), where)
    return sorted(found, key=_rank)


def _attached() -> Iterable[Address]:
    return (_address(pid, said) for pid, said in agent_memory.attached())


def _address(pid: int, facts: Facts) -> Address:
    """Of an agent of this machine, as this process reaches it: through the target's own root directory."""
    path = str(facts["endpoint"]).partition("://")[2]
    return Address(f"ipc:///proc/{pid}/root{path}", pid, facts)


def _by_job(attached: Iterable[Address]) -> list[Resolved]:
    found: dict[int, list[Address]] = {}
    for address in sorted(attached, key=lambda one: one.pid):
        found.setdefault(_job(address), []).append(address)
    return [Resolved(str(job), sorted(ranks, key=_rank)) for job, ranks in sorted(found.items())]


def _rank(address: Address) -> tuple[int, int]:
    return int(address.facts.get("rank") or 0), address.pid


def _job(address: Address) -> int:
    """The process that stands for the job: the launcher above a rank, else the process itself."""
    if int(address.facts.get("world_size") or 1) < 2:
        return address.pid
    try:
        with open(f"/proc/{address.pid}/stat", "rb") as file:
            parent = int(file.read().rpartition(b")")[2].split()[1])
    except OSError:
        return address.pid
    return parent if parent > 1 else address.pid


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
    pids = ", ".join(str(address.pid) for address in job.addresses)
    return f"pid {pids}" if len(job.addresses) == 1 else f"{len(job.addresses)} ranks: pids {pids}"


def _no_form(text: str) -> list[Address]:
    raise EndpointError(f"{text!r} is no endpoint.", f"An endpoint is {FORMS}.")


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
