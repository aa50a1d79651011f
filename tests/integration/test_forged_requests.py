"""Forged and malformed requests of every kind and role, through the job's server and at the agent's own socket.

FORGED says how many there are of each.  What is held: the training goes on and its memory stays, a reader changes
nothing, and others get right answers meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attacking import Attacker, anonymous_kb
from forged import FORBIDDEN, OF_SERVER, VALID, Fuzz
from raw_client import RawClient
from until import until

from probe import keys
from probe import protocol as wire
from probe.host import agent_memory
from target import Probe, Start, Target

REQUESTS = int(os.environ.get("FORGED", "1000"))
MEMORY_KB = 8 * 1024
PART = 500  # requests of one client, which is gone then
ROADS = ["ipc, control", "tcp, control", "tcp, read", "socket, control", "socket, read"]


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("keys") / "job.key"
    keys.create(str(made))
    keys.share(str(made), str(made.with_name("reader.key")))
    return made


@pytest.fixture(scope="module")
def job(start_once: Start, probe: Probe, key: Path) -> Target:
    made = start_once("loop.py", "--sleep", "0.05")
    probe("attach", "--listen", "127.0.0.1", "--key", key, made.pid)
    return made


class Road:
    """One way to the agent, for as many requests as a client of it makes."""

    def __init__(self, pid: int, name: str, key: Path) -> None:
        self._way, _, self.role = name.partition(", ")
        self._attacker = Attacker(pid, key if self.role == wire.CONTROL else key.with_name("reader.key"))

    def send(self, requests: Iterator[list[bytes]]) -> None:
        (self._send_at_socket if self._way == "socket" else self._send_to_server)(requests)

    def _send_to_server(self, requests: Iterator[list[bytes]]) -> None:
        with self._attacker.dealer(tcp=self._way == "tcp") as made:
            for number, (id, *frames) in enumerate(requests):
                to = b"" if number % 4 == 0 else self._attacker.agent
                made.send_multipart([id, to, *frames])
                while made.poll(0):
                    made.recv_multipart()
            while made.poll(50):
                made.recv_multipart()

    def _send_at_socket(self, requests: Iterator[list[bytes]]) -> None:
        made = None
        for request in requests:
            if made is None:
                made = RawClient(self._attacker.agent_path, 10.0)
                assert made.hello(role=self.role)["kind"] == wire.WELCOME
                made.socket.settimeout(0.2)
            try:
                made.send(request)
                while made.poll():
                    made.receive()
            except (OSError, EOFError):  # closed for what was sent
                made.close()
                made = None
        if made is not None:
            made.close()


def requests(fuzz: Fuzz, count: int) -> Iterator[list[bytes]]:
    for _ in range(count):
        yield fuzz.request()


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("road", ROADS)
def test_forged_requests_change_nothing_and_others_are_answered(
    job: Target, probe: Probe, key: Path, road: str
) -> None:
    way = Road(job.pid, road, key)
    kinds = [*VALID, *OF_SERVER] if way.role == wire.CONTROL else [*VALID, *OF_SERVER, *FORBIDDEN]
    way.send(requests(Fuzz(0, kinds), PART))  # what is kept once
    before, settings = anonymous_kb(job.pid), said(job.pid)
    for seed in range(1, 1 + REQUESTS // PART):
        way.send(requests(Fuzz(seed, kinds), PART))
        assert probe(job.pid, "eval", "--now", "6*7").stdout == "42\n"
        assert probe(job.pid, "query", "--format", "csv", "SELECT 6*7 AS n").stdout == "n\n42\n"
    assert job.alive
    if way.role == wire.READ:
        assert said(job.pid) == settings
    until(lambda: anonymous_kb(job.pid) - before < MEMORY_KB, why=lambda: anonymous_kb(job.pid) - before)
    trains(job.pid)


def said(pid: int) -> dict[str, Any]:
    """What a reader must not change.  How often `auto` samples is the agent's own choice, by what it measures."""
    facts = agent_memory.facts(pid)
    assert facts is not None and facts.sampling is not None
    asked = facts.sampling.sample, facts.sampling.budget_pct
    return {"sampling": asked, "base": facts.step_base, "source": facts.step_source, "server": facts.server}


def trains(pid: int) -> None:
    def count() -> int:
        facts = agent_memory.facts(pid)
        assert facts is not None
        return int(facts.count)

    first = count()
    until(lambda: count() > first, 45)
