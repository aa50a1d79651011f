"""The agents that a server serves, by what their memory says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from probe.host import agent_memory
from probe.host.facts import Facts
from probe.serve import agents as agents_module
from probe.serve.agents import Agents
from probe.streams import PROFILE_SAMPLES, SPANS, STREAMS


def test_a_stream_that_an_agent_has_just_begun_is_known_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def facts(id: str, *streams: str) -> Facts:
        of_streams: dict[str, Any] = {name: {"slots": list(STREAMS[name]), "chunks": 2} for name in streams}
        said = {"id": id, "pid": 7, "rank": 0, "served": {"server": "ipc:///s", "tcp": None}, "streams": of_streams}
        return Facts.parse(said)

    now = [facts("x", SPANS)]
    monkeypatch.setattr(agent_memory, "attached", lambda: [(7, now[0])])
    monkeypatch.setattr(agent_memory, "facts", lambda pid: now[0])
    monkeypatch.setattr(agents_module, "read_status", lambda pid: SimpleNamespace(uid=5))
    agents = Agents("ipc:///s", 5)
    assert agents.any_left() and agents.slots(b"x", PROFILE_SAMPLES) is None
    now[0] = facts("x", SPANS, PROFILE_SAMPLES)
    assert agents.slots(b"x", PROFILE_SAMPLES) == STREAMS[PROFILE_SAMPLES]
    now[0] = facts("y", SPANS)  # another agent by now
    assert agents.slots(b"x", "device") is None and agents.slots(b"x", SPANS) == STREAMS[SPANS]


def test_a_process_of_another_user_is_no_rank_whatever_its_memory_says(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"id": "x", "pid": 7, "rank": 1, "served": {"server": "ipc:///s", "tcp": None}}
    monkeypatch.setattr(
        agent_memory, "attached", lambda: [(7, Facts.parse(said)), (8, Facts.parse({**said, "id": "y"}))]
    )
    monkeypatch.setattr(agents_module, "read_status", lambda pid: SimpleNamespace(uid={7: 0, 8: 1000}[pid]))
    agents = Agents("ipc:///s", 0)
    assert agents.any_left() and [each["id"] for each in agents.records(None)] == ["x"]


def test_an_agent_that_came_after_the_others_is_found_when_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a word of AGENTS: over job:// an agent is asked at once, by what the store of the job says of it."""
    there = ["x"]

    def attached() -> list[tuple[int, Facts]]:
        looks.append(1)
        said = {"pid": 7, "rank": 1, "served": {"server": "ipc:///s", "tcp": None}}
        return [(7, Facts.parse({**said, "id": id})) for id in there]

    looks: list[int] = []
    monkeypatch.setattr(agent_memory, "attached", attached)
    monkeypatch.setattr(agents_module, "read_status", lambda pid: SimpleNamespace(uid=0))
    agents = Agents("ipc:///s", 0)
    assert agents.any_left() and agents.has(b"x") and len(looks) == 1
    there.append("y")
    assert agents.has(b"y") and len(looks) == 2
    there.append("z")
    assert not agents.has(b"z") and len(looks) == 2  # whoever asks cannot have it look all the time
    monkeypatch.setattr(agents_module, "_LOOK_S", 0.0)
    assert agents.has(b"z")
