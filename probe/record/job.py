"""The agents that a recorder reads: those of an endpoint on this host, and the memory of those that have ended.

Held by probe.record.recorder.  Invariant: once an agent was seen, its last rows can be read, whatever becomes of it.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ..client.client import Client
from ..client.endpoints import JOB, Resolved
from ..client.handshake import open_links
from ..derive.module_names import models_of
from ..errors import ProbeError, SilentError, UsageError
from ..host import agent_memory
from ..host.facts import Facts
from ..host.processes import has_ended, process, start_ticks
from ..snapshot.align import Alignment
from ..snapshot.snapshot import Snapshot
from ..snapshot.wire_source import WireSource
from . import manifest
from .sources import Begin, HeldMemory, Windowed

_NAME = re.compile(r"[\w.+-]{1,100}")
_MANIFEST_S, _LOOK_S = 1.0, 0.05  # from a recorder's making of the folder to its manifest


class RecordedJob:
    """Raises EndpointError, SilentError, and UsageError for agents on other hosts.  Close it."""

    def __init__(self, at: Resolved, timeout: float = 5.0, key: str | None = None) -> None:
        self.endpoint = at.endpoint
        self._client = Client(key)
        self._held: dict[str, HeldMemory] = {}
        self.ended = set[str]()
        try:
            open_links(self._client, at.addresses, timeout)
            self._require_here()
            self._alignment = Alignment(self._client, timeout)
            self._alignment.align()
            self._wire = WireSource(self._client, timeout, cache_bytes=0)
            for link in self._client.links:
                self._held[str(link.facts.id)] = HeldMemory(link.pid, link.facts)
            self._began = {link.pid: start_ticks(link.pid) for link in self._client.links}
        except BaseException:
            self.close()
            raise
        about = process(self._client.links[0].pid)
        self.command = about.command if about is not None else ""

    def _require_here(self) -> None:
        elsewhere = next((link for link in self._client.links if not link.here), None)
        if elsewhere is not None or not self._client.links:
            where = elsewhere.host if elsewhere is not None else self.endpoint
            raise UsageError(f"A host records its own ranks; {where} is not this one.", "Run probe record there.")

    @property
    def agents(self) -> set[tuple[int, str | None]]:
        """The process and the agent of each rank."""
        return {(link.pid, link.facts.id) for link in self._client.links}

    @property
    def facts(self) -> list[Facts]:
        return [link.facts._replace(pid=link.pid) for link in self._client.links]

    @property
    def ranks(self) -> dict[str, dict[str, Any]]:
        """What the manifest keeps of each."""
        return {str(each.rank or 0): manifest.of_rank(each, self._began.get(each.pid)) for each in self.facts}

    def look(self) -> set[str]:
        """The agents that are gone by now, whose memory is still held.  Cost: some milliseconds a rank."""
        for held in self._held.values():
            held.hold()
        self.ended = {id for id, held in self._held.items() if not _lives(held)}
        return self.ended

    @property
    def held(self) -> Mapping[str, HeldMemory]:
        """The memory of the agents that are to be read, by their ids."""
        return self._held

    @property
    def has_ended(self) -> bool:
        """Whether no agent is left, as of the last look."""
        return self.ended == set(self._held)

    @property
    def is_over(self) -> bool:
        """Whether each process has ended, which costs nothing to find out."""
        return all(has_ended(held.process) for held in self._held.values())

    def said(self) -> list[Facts]:
        """What the agents that live say of themselves at this moment.  Cost: 0.1 ms a rank."""
        living = [held for id, held in self._held.items() if id not in self.ended]
        return [facts for held in living if (facts := held.said()) is not None]

    def models(self) -> set[str]:
        """What the first rank calls its models, as far as they have been called.  Cost: that of reading its log."""
        first = min(self._held.values(), key=lambda held: held.rank, default=None)
        log = None if first is None else first.log()
        return set() if log is None else {*models_of(log).values()}

    def drop(self, agents: Collection[str]) -> None:
        """Nothing of these is wanted any more."""
        for id in agents:
            self._held.pop(id).close()
        self.ended -= set(agents)

    def snapshot(self, begin: Begin = lambda rank, stream: None) -> Snapshot:
        """All ranks at this moment, those that have ended too, with the rows since a moment of each.

        Raises SilentError if none can be read.
        """
        if not self._held:
            raise SilentError("No rank is left.", code="gone")
        ended = self.ended
        with suppress(ProbeError):  # ranks end, or do not answer: what their memory shows is recorded all the same
            self._alignment.update()
        for link in self._client.links:
            if link.facts.id in self._held:
                self._held[str(link.facts.id)].know(link.facts)
        sources = [Windowed(self._held[id], begin) for id in ended]
        living = {held.process: held for id, held in self._held.items() if id not in ended}
        return Snapshot([*sources, *([Windowed(self._wire, begin, living)] if living else [])])

    def close(self) -> None:
        self._client.close()
        while self._held:
            self._held.popitem()[1].close()


def folder_of(runs: Path, name: str, job: RecordedJob) -> Path:
    """Its own in `runs`: job=NAME, or job=NAME-2 and so on if other runs are called so; it is made, so that no other
    run takes it meanwhile.  Raises UsageError, OSError."""
    named = [f"{JOB}{_job_name(name, job)}"]
    with suppress(FileExistsError):
        os.mkdir(runs)
    while not _is_made(runs / named[-1]) and manifest.is_of_another_run(runs / named[-1], job.ranks):
        named.append(f"{named[0]}-{len(named) + 1}")
    return runs / named[-1]


def _is_made(folder: Path) -> bool:
    """Whether it was not there; of one that another recorder has just made, the manifest is there in a moment."""
    try:
        os.mkdir(folder)
        return True
    except FileExistsError:
        end = time.monotonic() + _MANIFEST_S
        while not (folder / manifest.NAME).exists() and time.monotonic() < end:
            time.sleep(_LOOK_S)
        return False


def _job_name(name: str, job: RecordedJob) -> str:
    """As the user calls it, else as its agents do, else by its command and when it was attached.  Raises UsageError."""
    facts = min(job.facts, key=lambda each: each.rank or 0)
    if name and not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} cannot name a recorded job.", "Use letters, digits, dots and dashes: --name exp7")
    given = name or facts.name
    return given if _NAME.fullmatch(given) else f"{_program(job.command)}-{_stamp(facts)}"


def _program(command: str) -> str:
    """`train` for `python -u train.py --lr 1`."""
    words = (os.path.basename(word) for word in command.split() if not word.startswith("-"))
    script = next((word.removesuffix(".py") for word in words if word.endswith(".py")), "job")
    return re.sub(r"[^\w.+-]", "-", script)[:50]


def _stamp(facts: Facts) -> str:
    began = facts.attached_wall_ns / 1e9 if facts.attached_wall_ns else time.time()
    return datetime.fromtimestamp(began, timezone.utc).strftime("%Y%m%dT%H%M%S")


def _lives(held: HeldMemory) -> bool:
    facts = agent_memory.facts(held.process)
    return facts is not None and facts.id == held.id
