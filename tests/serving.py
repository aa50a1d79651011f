"""The server beside a job, in a thread of the test, for agents that the test names."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fake_agent import FakeAgent

from probe import keys
from probe.client.endpoints import Address
from probe.protocol import CONTROL
from probe.serve.agents import Agents
from probe.serve.server import Server


class Named(Agents):
    """These agents, of which several may live in one process; without a ring that could be read."""

    def __init__(self, agents: Sequence[FakeAgent]) -> None:
        super().__init__("", os.getuid())
        self._agents = {agent.facts["id"]: agent for agent in agents}
        self.paths = {id.encode(): agent.path for id, agent in self._agents.items()}
        self.over = False

    def any_left(self) -> bool:
        return not self.over

    def has(self, id: bytes) -> bool:
        return id in self.paths

    def pid(self, id: bytes) -> int | None:
        return None

    def slots(self, id: bytes, stream: Any) -> tuple[str, ...] | None:
        return None

    def processes(self, ids: Sequence[str] | None) -> dict[str, int]:
        return {id: agent.facts["pid"] for id, agent in self._agents.items() if ids is None or id in ids}

    def records(self, ids: Sequence[str] | None) -> list[dict[str, Any]]:
        return [{name: agent.facts[name] for name in ("id", "rank", "pid", "host")} for agent in self._agents.values()]


_LOOK_S = 0.05  # so that it ends with its test


class Serving:
    """path, and with a key port: where it listens; close() it.  key: a file with which it was attached."""

    def __init__(self, folder: Path, *agents: FakeAgent, key: Path | None = None, role: str = CONTROL) -> None:
        self._folder = folder / f"server-{id(self):x}"
        self._folder.mkdir()
        self.path = f"{self._folder}/server"
        self.agents = Named(agents)
        listening = [_listening(socket.AF_UNIX, self.path)]
        given: dict[str, Any] = {"endpoint": f"ipc://{self.path}", "role": role, "key": None, "tcp": None, "pid": 1}
        given["python_path"] = sys.path
        if key is not None:
            listening.append(_listening(socket.AF_INET, ("127.0.0.1", 0)))
            self.port = listening[-1].getsockname()[1]
            server: Mapping[str, Any] = keys.read(str(key)).of_server()
            given |= {"tcp": f"tcp://127.0.0.1:{self.port}", "key": server}
        self._server = Server(given, self.agents, *(each.detach() for each in listening), look_s=_LOOK_S)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()

    @property
    def address(self) -> Address:
        return Address(f"ipc://{self.path}")

    @property
    def at_port(self) -> Address:
        return Address(f"tcp://127.0.0.1:{self.port}")

    def close(self) -> None:
        self.agents.over = True
        self._thread.join()
        self._server.close()


def _listening(family: int, address: Any) -> socket.socket:
    made = socket.socket(family)
    made.setblocking(False)
    made.bind(address)
    made.listen(16)
    return made
