"""From what a user writes as an endpoint, or from nothing at all, to the addresses of the agents it names.

Called by every verb and by probe.connect.  _FORMS lists the forms; a new one is a line there.  Invariant: nothing is
guessed; an ambiguous endpoint is an error that lists the choices.  Nothing here touches a network: only connecting
shows whether a port answers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pkgutil import resolve_name
from typing import Any, NamedTuple

from ..errors import EndpointError, UsageError
from ..host import agent_memory
from ..host.facts import NO_FACTS, Facts
from ..host.processes import descendants, launcher

_NAME = re.compile(r"(?!-)[^\s:/,]+")  # looks like no other form, and no option
SERVER = "/server"  # how the path of a server's socket ends
JOB = "job="  # how folders of recorded jobs begin
_PORT = re.compile(r"(\[[0-9A-Fa-f:.%\w]+\]|[^\s:/\[\]]+):(\d{1,5})")


class Address(NamedTuple):
    """Where one agent listens, or a server with all its agents.  pid: as this machine sees it, 0 if only the agent
    knows; facts: known beforehand; whole_job: it is to name all the others of its job; source: "" for an agent; for
    recorded ranks the `module:class` of the Source, imported when it is needed and made with the url; connection: where
    there are no agents, the `module:class` of what is to be a Connection, made likewise."""

    url: str
    pid: int = 0
    facts: Facts = NO_FACTS
    whole_job: bool = False
    shown: str = ""  # as it was written, where url is not
    source: str = ""
    connection: str = ""


class Resolved(NamedTuple):
    """endpoint: as one would write it; addresses: of each agent, by rank if that is known; skipped: a line about each
    process that only looks as if it had an agent."""

    endpoint: str
    addresses: list[Address]
    skipped: Sequence[str] = ()

    def recorded(self) -> list[Any]:
        """The sources of recorded ranks."""
        return [resolve_name(each.source)(each.url) for each in self.addresses if each.source]


def resolve(text: str | None = None) -> Resolved:
    """The agents of an endpoint; of None those of the only job.  Raises EndpointError, UsageError if it is empty."""
    if text is None:
        return _only_job()
    if not text.strip():
        raise UsageError("The endpoint is empty.", "Is $ENDPOINT set? Run: probe list")
    parts, skipped = list(dict.fromkeys(part.strip() for part in text.split(","))), list[str]()
    found = {address.url: address for part in parts for address in _addresses(part, skipped)}
    return Resolved(",".join(parts), list(found.values()), skipped)


def jobs(skipped: list[str] | None = None) -> list[Resolved]:
    """Every attached job on this machine: ranks under one launcher are one job.

    skipped: gets a line about each process that only looks as if it had an agent.
    """
    return _by_job(_attached(skipped))


def is_name(text: str) -> bool:
    """Whether this may name an attached job: it must not look like any other form of endpoint."""
    return bool(_NAME.fullmatch(text)) and text.isprintable() and not text.isdigit()


def host_and_port(text: str) -> tuple[str, int] | None:
    """The parts of `HOST:PORT`, where HOST may be an IPv6 address in brackets; None for any other text."""
    match = _PORT.fullmatch(text)
    return (match[1].strip("[]"), int(match[2])) if match and 0 < int(match[2]) < 1 << 16 else None


def _addresses(text: str, skipped: list[str]) -> list[Address]:
    for form in _FORMS:
        match = re.fullmatch(form.pattern, text, re.DOTALL)
        found = None if match is None else form.addresses(match, skipped)
        if found is not None:
            return found
    raise EndpointError(f"{text!r} is no endpoint.", f"An endpoint is {FORMS}.")


def _is_pid(digits: str) -> bool:
    return 0 < int(digits) < 1 << 31


def _at_port(place: str, whole_job: bool = False) -> list[Address] | None:
    return None if host_and_port(place) is None else [Address(f"tcp://{place}", whole_job=whole_job)]


def _of_pid(pid: int, skipped: list[str]) -> list[Address]:
    said = agent_memory.facts(pid, skipped)
    if said is not None:
        return [address_of(pid, said)]
    found = ((each, agent_memory.facts(each, skipped)) for each in descendants(pid)[1:])
    below = [address_of(each, said) for each, said in found if said is not None]
    if not below:
        raise _absent(pid)
    return _one_job(below, f"Below pid {pid}")


def _recording(folder: str) -> list[Address] | None:
    """A folder that holds recordings, or is one of a job; None for anything else."""
    path = os.path.abspath(folder)
    with suppress(OSError):
        if any(name.startswith(JOB) for name in (os.path.basename(path), *os.listdir(path))):
            return [Address(path, shown=folder, connection="probe.record.recording:Recording")]
    if "/" in folder and os.path.isdir(path):
        raise EndpointError(f"{folder} holds no recording.", "A recording is a folder with job=NAME in it.")
    return None


def _named(name: str, skipped: list[str]) -> list[Address]:
    everyone = list(_attached(skipped))
    found = [address for address in everyone if address.facts.name == name]
    if not found:
        names = sorted({address.facts.name for address in everyone if address.facts.name})
        known = f"Names: {', '.join(names)}." if names else f"An endpoint is {FORMS}."
        raise EndpointError(f"{name!r} is no endpoint: no job attached here has this name.", known)
    return _one_job(found, f"By the name {name}")


def _one_job(found: list[Address], where: str) -> list[Address]:
    """Sorted by rank.  Raises EndpointError if two have the same rank."""
    if len({address.facts.rank for address in found}) < len(found):
        raise _several(_by_job(found), where)
    return sorted(found, key=_rank)


def _attached(skipped: list[str] | None) -> Iterable[Address]:
    return (address_of(pid, said) for pid, said in agent_memory.attached(skipped))


def address_of(pid: int, facts: Facts) -> Address:
    """The address of an agent on this machine, reached through the target's own root directory."""
    path = str(facts.endpoint).partition("://")[2]
    return Address(f"ipc:///proc/{pid}/root{path}", pid, facts)


def _by_job(attached: Iterable[Address]) -> list[Resolved]:
    found: dict[int, list[Address]] = {}
    for address in sorted(attached, key=lambda one: one.pid):
        found.setdefault(_job(address), []).append(address)
    return [Resolved(str(job), sorted(ranks, key=_rank)) for job, ranks in sorted(found.items())]


def _rank(address: Address) -> tuple[int, int]:
    return address.facts.rank or 0, address.pid


def _job(address: Address) -> int:
    """The process that represents the job: the launcher above a rank, or the process itself."""
    return (launcher(address.pid) if (address.facts.world_size or 1) > 1 else None) or address.pid


def _only_job() -> Resolved:
    skipped = list[str]()
    found = jobs(skipped)
    if len(found) == 1:
        return found[0]._replace(skipped=skipped)
    if not found:
        raise EndpointError("Nothing is attached.", "Run: probe list, then probe attach PID", "not-attached")
    raise _several(found, "On this machine")


def _several(found: list[Resolved], where: str) -> EndpointError:
    names = []
    for job in found:
        ranks, pids = len(job.addresses), ", ".join(str(address.pid) for address in job.addresses)
        names.append(f"{job.endpoint} (pid {pids})" if ranks == 1 else f"{job.endpoint} ({ranks} ranks: pids {pids})")
    message = f"{where} {len(found)} jobs are attached: {'; '.join(names)}."
    return EndpointError(message, "Say which one.", "several-jobs")


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


class Form(NamedTuple):
    """One form of endpoint.  shown: how one writes it; pattern: of the whole text; addresses: what it stands for, None
    if it is of another form all the same; its second argument is that of jobs()."""

    shown: str
    pattern: str
    addresses: Callable[[re.Match[str], list[str]], list[Address] | None]


_FORMS = [
    Form(
        "a pid (torchrun's, too)",
        r"\d+",
        lambda pid, skipped: _of_pid(int(pid[0]), skipped) if _is_pid(pid[0]) else None,
    ),
    Form("the folder of a recording", r".+", lambda folder, _: _recording(folder[0])),
    Form("a name", r".+", lambda name, skipped: _named(name[0], skipped) if is_name(name[0]) else None),
    Form("ipc://PATH", r"ipc://.+", lambda url, _: [Address(url[0])]),
    Form("tcp://HOST:PORT", r"tcp://(.+)", lambda place, _: _at_port(place[1])),
    Form("job://HOST:PORT", r"job://(.+)", lambda place, _: _at_port(place[1], whole_job=True)),
]
FORMS = ", ".join([*(form.shown for form in _FORMS), "or several with commas"])
