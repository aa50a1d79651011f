"""The agents that a server serves: those of this host whose facts name it.

Used by server and relay.  Invariant: an agent that has ended or names another server is known for a second at most.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from ..host import agent_memory
from ..host.facts import Facts
from ..host.process_status import read_status
from ..protocol import WireError

_LOOK_S = 1.0  # between two looks at all processes for agents that clients ask for and that are not known


class Agents:
    """paths: agent's id -> its socket as this process reaches it."""

    def __init__(self, server: str, uid: int) -> None:
        """server: the endpoint by which agents know it; uid: as whom the job runs."""
        self._server, self._uid = server, uid
        self._known: dict[str, tuple[int, Facts]] = {}
        self.paths: Mapping[bytes, str] = {}
        self._looked = -math.inf

    def has(self, id: bytes) -> bool:
        """Whether there is this agent; one that is not known may have come since the last look."""
        if id not in self.paths and time.monotonic() - self._looked > _LOOK_S:
            self._looked = time.monotonic()
            self._find()
        return id in self.paths

    def any_left(self) -> bool:
        """Forget those that are gone; if none is left, look for others."""
        now = {id: (pid, agent_memory.facts(pid)) for id, (pid, _) in self._known.items()}
        self._keep([(pid, facts) for id, (pid, facts) in now.items() if facts is not None and facts.id == id])
        if not self._known:
            self._find()
        return bool(self._known)

    def _find(self) -> None:
        """Look at every process of this user."""
        self._keep(list(agent_memory.attached()))

    def pid(self, id: bytes) -> int | None:
        """Of the process with this agent, as this process sees it."""
        known = self._known.get(id.decode(errors="replace"))
        return known and known[0]

    def processes(self, ids: Sequence[str] | None) -> dict[str, int]:
        """The process of each of these agents; None: of all there are.  Raises WireError if one is unknown."""
        if ids is None or not set(ids) <= self._known.keys():
            self._find()
        if missing := [id for id in ids or () if id not in self._known]:
            raise WireError(f"declined: agent {missing[0][:20]!r} is not served here")
        return {id: self._known[id][0] for id in self._known if ids is None or id in ids}

    def slots(self, id: bytes, stream: Any) -> tuple[str, ...] | None:
        """Of a stream that this agent records, perhaps only since a moment ago."""
        name = id.decode(errors="replace")
        known = self._known.get(name)
        if known is not None and str(stream) not in known[1].streams:
            facts = agent_memory.facts(known[0])
            if facts is not None and facts.id == name:
                known = self._known[name] = known[0], facts
        layout = known and known[1].streams.get(str(stream))
        return layout.slots if layout else None

    def records(self, ids: Sequence[str] | None) -> list[dict[str, Any]]:
        """What a client needs to know of each agent.  ids: those that it needs; None: all there are."""
        if ids is None or not set(ids) <= self._known.keys():
            self._find()
        return [
            {"id": id, "rank": facts.rank, "pid": facts.pid, "host": facts.host}
            for id, (_, facts) in self._known.items()
        ]

    def _keep(self, found: Sequence[tuple[int, Facts]]) -> None:
        named = [(pid, facts) for pid, facts in found if facts.id and facts.server == self._server]
        self._known = {facts.id: (pid, facts) for pid, facts in named if facts.id and self._is_of_job(pid, facts.id)}
        self.paths = {
            id.encode(): f"/proc/{pid}/root{str(facts.endpoint).partition('://')[2]}"
            for id, (pid, facts) in self._known.items()
        }

    def _is_of_job(self, pid: int, id: str) -> bool:
        """Whoever runs on this host may have in memory that it is a rank of this job; where root serves, it is seen."""
        if self._known.get(id, (0,))[0] == pid:
            return True
        with suppress(OSError):
            return read_status(pid).uid == self._uid
        return False
