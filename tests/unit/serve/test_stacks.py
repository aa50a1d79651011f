"""The server's side of stacks and profiles, with a process that never answers."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from until import until

from probe import protocol as wire
from probe.host.processes import has_ended
from probe.serve import profiles, sibling, stacks
from probe.serve.relay import Client, Frontend, Refused
from probe.serve.scans import Request

CLIENT = Client(Frontend(None, wire.CONTROL), b"c", wire.CONTROL)
READER = Client(Frontend(None, wire.READ), b"r", wire.READ)
GIVEN = {"endpoint": "ipc:///none", "key": {"secret": "s"}}
ORDER = {"kind": wire.SAMPLE, "seconds": 1e9, "steps": 0, "rate": 1e9, "by": "x" * 999, "patience_s": 1}


class Relay:
    """replies: what clients have got."""

    def __init__(self) -> None:
        self.replies: list[dict[str, Any]] = []

    def watch(self, *_: object) -> None: ...

    def forget(self, *_: object) -> None: ...

    def reply(self, client: Client, frames: list[bytes]) -> bool:
        self.replies.append(json.loads(frames[2]))
        return True


AGENTS: Any = SimpleNamespace(pid=lambda id: 1 if id == b"known" else None)


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as made:
        monkeypatch.setattr(sibling, "spawn", lambda command, descriptors: made.pid)
        yield made
        made.kill()


def about(number: int, agent: bytes = b"known", client: Client = CLIENT) -> Request:
    return Request(client, agent, str(number).encode())


def test_who_waits_for_stacks_is_told_when_the_process_is_late(process: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    relay: Any = Relay()
    made = stacks.Stacks(GIVEN, AGENTS, relay)
    for number in range(stacks._MOST_PER_CLIENT):
        assert made.take(about(number), {"kind": wire.STACKS})
    with pytest.raises(Refused, match="waiting already"):
        made.take(about(999), {"kind": wire.STACKS})
    with pytest.raises(Refused, match="has ended"):
        made.take(about(999, b"unknown"), {"kind": wire.STACKS})
    assert not made.take(about(1), {"kind": wire.SNAPSHOT})
    made.tidy()
    assert not has_ended(process.pid) and not relay.replies
    monkeypatch.setattr(stacks, "_LATE_S", 0.0)
    made.tidy()
    until(lambda: has_ended(process.pid), 10)
    assert {reply["kind"] for reply in relay.replies} == {wire.ERROR} and len(relay.replies) == stacks._MOST_PER_CLIENT


def test_a_process_that_cannot_be_started_is_an_error_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(sibling, "spawn", refuses)
    relay: Any = Relay()
    for part, request in ((stacks.Stacks, {"kind": wire.STACKS}), (profiles.Profiles, ORDER)):
        with pytest.raises(Refused, match=r"Permission denied\. Attach with a Python that the job's user can read"):
            part(GIVEN, AGENTS, relay).take(about(1), request)


def test_one_profile_of_an_agent_at_a_time_which_ends_when_nobody_wants_it(
    process: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay: Any = Relay()
    made = profiles.Profiles(GIVEN, AGENTS, relay)
    with pytest.raises(Refused, match="may read, not control"):
        made.take(about(1, client=READER), ORDER)
    assert made.take(about(1), ORDER)
    with pytest.raises(Refused, match="is profiling it"):
        made.take(about(2), ORDER)
    (running,) = made._running.values()
    assert made.take(about(1), {"kind": wire.NEXT}) and not made.take(about(2), {"kind": wire.NEXT})
    made.tidy()
    assert running.told_to_end is None
    monkeypatch.setattr(profiles, "_UNWANTED_S", 0.0)
    made.tidy()
    assert running.told_to_end is not None and not relay.replies
    monkeypatch.setattr(profiles, "_ENDS_S", 0.0)
    made.tidy()
    until(lambda: has_ended(process.pid), 10)
    (reply,) = relay.replies
    assert reply["kind"] == wire.SAMPLED and "can profile it" in reply["told"]["error"]["message"]
    assert not made.is_busy


def test_an_order_has_bounds() -> None:
    order = profiles._order(ORDER)
    assert (order["seconds"], order["rate"], len(order["by"])) == (3600, 1000, 200)
    with pytest.raises((TypeError, ValueError)):
        profiles._order({**ORDER, "rate": "much"})
