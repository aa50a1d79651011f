"""What two looks at ranks on other hosts ask, one of which has vanished, and what they make of the answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from probe import protocol as wire
from probe.client.call import Call
from probe.client.client import AgentLink, Client
from probe.client.endpoints import Address
from probe.client.server_socket import Route
from probe.diagnose.hang import looks
from probe.host.facts import Facts
from probe.snapshot import live_stacks
from probe.snapshot.live_stacks import STARTS_S

PATIENCE_S, LOOK_S, READ_S = 1.0, 1.0, 0.04


class Host:
    """What a route asks of its server."""

    connections, ended, is_lost, code = 1, "", False, ""


class Hosts(Client):
    """Two hosts of as many ranks, whose threads always run; to read the stacks of one takes READ_S.  The second host
    answers `looks` looks.  Time passes as somebody waits."""

    def __init__(self, of_each: int) -> None:
        super().__init__()
        self.now, self.asked, self.waited = 100.0, list[tuple[str, int]](), list[float]()
        self.looks, hosts = 0, [Host(), Host()]
        for rank in range(2 * of_each):
            facts = Facts(id=str(rank), pid=4000 + rank, rank=rank, host="ab"[rank // of_each], monotonic_ns=1)
            server: Any = hosts[rank // of_each]
            self.links.append(AgentLink(Address("tcp://x:1", facts=facts), Route(server)))

    def send(self, link: AgentLink, kind: str, *payload: bytes, **fields: Any) -> Call:
        self.asked.append((kind, link.rank))
        return Call(link, b"1", kind)

    def wait(self, calls: Sequence[Call], deadline: float | None, *_: Any) -> list[Call]:
        left = [call for call in calls if call.link.facts.host == "b" and self.round(call) > self.looks]
        begun = self.now
        for call in calls:
            if call not in left:
                self.now += READ_S * (call.kind == wire.STACKS)
                call.answer, call.answered_at = self.answer(call), self.now
        self.now = deadline if left and deadline is not None else self.now
        self.waited.append(self.now - begun)
        return left

    def round(self, call: Call) -> int:
        return self.asked.count((call.kind, call.link.rank))

    def answer(self, call: Call) -> dict[str, Any]:
        load = {"used": [1, self.now, 1], "below_s": 0.0, "moved_bytes": 0}
        return {"streams": {}, "facts": call.link.facts, "threads": [], "load": load}

    def monotonic(self) -> float:
        return self.now

    def time_ns(self) -> int:
        return int(self.now * 1e9)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosts]:
    made = Hosts(8)
    for module in (looks, live_stacks):
        monkeypatch.setattr(module, "time", made)
    monkeypatch.setattr(looks, "simplest_poll_s", lambda: 50e-6)
    monkeypatch.setattr(looks, "_listen_again", lambda *_: None)
    monkeypatch.setattr(looks, "_issued", lambda *_: looks._Issued())
    yield made
    made.close()


def test_a_host_that_has_vanished_costs_one_time_out_for_stacks(hosts: Hosts) -> None:
    looks.gather(hosts, "job://x", PATIENCE_S, LOOK_S)
    ranks = [rank for kind, rank in hosts.asked if kind == wire.STACKS]
    assert ranks == [*range(16), *range(8)]
    assert hosts.waited == pytest.approx([PATIENCE_S, PATIENCE_S + STARTS_S, 0.0, 8 * READ_S])


def test_a_rank_that_runs_all_the_time_is_busy_however_long_another_host_is_waited_for(hosts: Hosts) -> None:
    evidence = looks.gather(hosts, "job://x", PATIENCE_S, LOOK_S)
    assert [each.running for each in evidence.ranks] == [pytest.approx(1.0)] * 8 + [None] * 8
    assert evidence.look_s == pytest.approx(PATIENCE_S + PATIENCE_S + STARTS_S + LOOK_S)


def test_a_rank_that_came_only_at_the_second_look_is_not_said_to_have_done_all_that_since_the_first(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = hosts.answer

    def late(call: Call) -> dict[str, Any]:
        lacks = {"load": None} if hosts.round(call) == 1 and call.link.rank == 3 else {}
        worked = {"used": [1, hosts.now, 1], "below_s": 900.0, "moved_bytes": 1 << 40}
        return answer(call) | {"load": worked} | lacks

    monkeypatch.setattr(hosts, "answer", late)
    seen = looks.gather(hosts, "job://x", PATIENCE_S, LOOK_S).ranks
    assert (seen[3].running, seen[3].below, seen[3].moved_bytes) == (None, None, 0)
    assert seen[2].below == 0.0


def test_the_stacks_of_a_server_are_waited_for_by_how_many_ranks_it_has(hosts: Hosts) -> None:
    hosts.looks = 1
    looks.gather(hosts, "job://x", PATIENCE_S, LOOK_S)
    assert hosts.asked.count((wire.STACKS, 15)) == 2
    assert hosts.waited[-1] == pytest.approx(PATIENCE_S + 8 * looks._STACKS_S)
