"""What is written as an endpoint, and where its agents are asked; agents of this machine and of others."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from fake_agent import FakeAgent
from hypothesis import given
from hypothesis import strategies as st

from probe import keys
from probe import protocol as wire
from probe.cli.argv import arrange
from probe.client import endpoints, host_names
from probe.client.client import Client
from probe.client.endpoints import FORMS, Address, Resolved, host_and_port, is_name
from probe.client.handshake import greet
from probe.client.host_names import in_numbers, numeric
from probe.connection import Connection
from probe.errors import EndpointError
from probe.host import agent_memory
from probe.host.facts import Facts
from probe.host.processes import boot_id
from probe.snapshot.memory_source import MemorySource

Make = Callable[..., FakeAgent]


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("tcp://node1:29600", [Address("tcp://node1:29600")]),
        ("tcp://[::1]:29600", [Address("tcp://[::1]:29600")]),
        ("job://node1:29600", [Address("tcp://node1:29600", whole_job=True)]),
        ("ipc:///tmp/a.sock", [Address("ipc:///tmp/a.sock")]),
        ("tcp://a:1, tcp://b:1,tcp://a:1", [Address("tcp://a:1"), Address("tcp://b:1")]),
    ],
)
def test_each_form_says_where_to_ask(text: str, addresses: list[Address]) -> None:
    assert endpoints.resolve(text).addresses == addresses


@pytest.mark.parametrize(
    "text",
    ["http://a:1", "tcp://", "tcp://a", "tcp://a:", "tcp://a:0", "tcp://a:65536", "tcp://a:b", "tcp://a b:1", "ipc://",
     "job://a", "a:1", "0", "99999999999", "1,,2", "a/b", "tcp://a:1,foo://b", "-x"],
)  # fmt: skip
def test_what_is_no_form_is_told_all_forms_in_one_line(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_memory, "facts", lambda pid, skipped=None: Facts(rank=0, endpoint="ipc:///x"))
    with pytest.raises(EndpointError, match="is no endpoint") as caught:
        endpoints.resolve(text)
    assert str(caught.value).endswith(f"An endpoint is {FORMS}.") and "\n" not in str(caught.value)
    assert caught.value.code == "endpoint"


@given(st.text(min_size=1, max_size=12))
def test_a_name_is_never_another_form_nor_lost_on_a_command_line(name: str) -> None:
    if is_name(name):
        assert not name.isdigit() and host_and_port(name) is None and "://" not in name and "," not in name
        assert arrange([name, "query", "SELECT 1"], ["query"]) == ["query", "-t", name, "SELECT 1"] or name == "query"


def test_a_name_that_nothing_bears_is_told_the_names_there_are(agent: Make) -> None:
    name = f"exp-{os.getpid()}"
    agent(name=name)
    with pytest.raises(EndpointError, match=rf"'{name}-b' is no endpoint: .* Names: .*{name}"):
        endpoints.resolve(f"{name}-b")
    (address,) = endpoints.resolve(name).addresses
    assert address.pid == os.getpid()


@pytest.fixture
def connect() -> Any:
    made: list[Connection] = []

    def connect(*addresses: Address, timeout: float = 2.0, key: str | None = None) -> Connection:
        made.append(Connection(Resolved("these", list(addresses)), timeout, key))
        return made[-1]

    yield connect
    for each in made:
        each.close()


def here(id: str) -> dict[str, Any]:
    return {"id": id, "boot_id": boot_id()}


def test_an_agent_asked_at_its_socket_is_known_by_the_pid_it_has_here(agent: Make, connect: Any) -> None:
    one = agent(3, **{**here("ours"), "pid": 1})  # as in a pid namespace of its own
    (facts,) = connect(Address(one.server.endpoint)).agents
    assert (facts.rank, facts.pid) == (3, os.getpid())


@pytest.mark.slow
@pytest.mark.parametrize(
    "elsewhere",
    [
        {"boot_id": "another kernel"},
        pytest.param({"id": "another agent"}, marks=pytest.mark.long),
        pytest.param({"id": None}, marks=pytest.mark.long),
    ],
)
def test_into_a_process_of_another_host_nobody_looks_whatever_its_pid(
    agent: Make, connect: Any, elsewhere: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = agent(1, **{**here("ours"), **elsewhere, "host": "far", "start_ticks": 1})
    if elsewhere == {"id": "another agent"}:
        monkeypatch.setattr(agent_memory, "facts", lambda pid, skipped=None: Facts(id="ours"))
    with closing(Client()) as client:
        link = client.connect(Address(one.server.endpoint))
        greet(client, 2.0)
        assert (link.here, link.readable, link.pid) == (False, False, os.getpid())
    connection = connect(Address(one.server.endpoint), timeout=1.0)
    monkeypatch.setattr(MemorySource, "ranks", lambda source: pytest.fail("its memory was read"))
    one.deaf |= {"snapshot", "memory"}
    assert connection.stacks() == {}
    (silent,) = connection.unreached
    assert (silent.rank, silent.host) == (1, "far") and f"Rank 1 (far, pid {os.getpid()})" in silent.why
    told = " ".join(connection.hang(look_s=0.1).why)
    assert f"rank 1 (far, pid {os.getpid()}) does not answer" in told and "sleeps" not in told


def test_agents_named_twice_count_once_and_ranks_of_two_jobs_collide(agent: Make, connect: Any) -> None:
    zero, one = agent(0, **here("a"), world_size=2), agent(1, **here("b"), world_size=2)
    places = [Address(one.server.endpoint), Address(zero.server.endpoint)]
    twice = Address(f"ipc:///proc/self/root{one.server.endpoint.removeprefix('ipc://')}")
    assert [facts.rank for facts in connect(*places, twice).agents] == [0, 1]
    with pytest.raises(EndpointError, match=r"different jobs: Rank 0 .* and Rank 0 ") as caught:
        connect(*places, Address(agent(0, **here("c")).server.endpoint))
    assert caught.value.code == "rank-twice"


def test_an_agent_of_which_nothing_is_known_must_answer(agent: Make, connect: Any) -> None:
    zero, mute = agent(0, **here("a")), agent(1, **here("b"))
    mute.deaf.add("hello")
    with pytest.raises(Exception, match=f"{mute.server.endpoint} does not answer") as caught:
        connect(Address(zero.server.endpoint), Address(mute.server.endpoint), timeout=1.0)
    assert caught.value.code == "silent"


def test_ranks_for_which_no_address_answers_are_silent_and_no_address_is_said_to_be_theirs(
    agent: Make, connect: Any, serving: Any, tmp_path: Any
) -> None:
    keys.create(str(tmp_path / "job.key"))
    zero, mute = agent(0, world_size=3), agent(2, world_size=3)
    mute.deaf.add("hello")
    with socket.socket() as bound:  # and does not listen
        bound.bind(("127.0.0.1", 0))
        dead = Address(f"tcp://127.0.0.1:{bound.getsockname()[1]}")
        live = serving(zero, key=tmp_path / "job.key").at_port
        job = connect(dead, live, Address(mute.server.endpoint), timeout=1.0, key=str(tmp_path / "job.key"))
        told = job.query("SELECT rank, state, why FROM probe.agents ORDER BY rank").to_pylist()
        assert [(row["rank"], row["state"]) for row in told] == [(0, "answers"), (1, "silent"), (2, "silent")]
        for row in told[1:]:
            assert f"Nothing listens at {dead.url}" in row["why"] and f"{mute.server.endpoint} does not" in row["why"]
        assert job.query("SELECT * FROM python.step_trace").coverage.silent == (1, 2)
        with pytest.raises(EndpointError, match=f"Nothing listens at {dead.url}"):
            connect(dead, dead, key=str(tmp_path / "job.key"))
        zero.facts["world_size"] = 1
        with pytest.raises(EndpointError, match=f"Nothing listens at {dead.url}.*Leave it out") as caught:
            connect(live, dead, key=str(tmp_path / "job.key"))
        assert caught.value.code == "unreachable"


def test_who_may_only_read_has_steps_of_one_number_all_the_same(
    agent: Make, connect: Any, serving: Any, tmp_path: Any
) -> None:
    keys.create(str(tmp_path / "job.key"))
    keys.share(str(tmp_path / "job.key"), str(tmp_path / "reader.key"))
    ranks = [agent(rank, **here(str(rank)), world_size=2) for rank in range(2)]
    for rank, started in zip(ranks, (0, 7), strict=True):
        rank.name_modules()
        rank.train(20, start=started * 1000, group_seq=started)  # the clock says what the numbers say
    places = [serving(rank, key=tmp_path / "job.key").at_port for rank in ranks]
    lasts = "SELECT rank, MAX(step) AS step FROM python.step_trace GROUP BY 1 ORDER BY 1"
    told = connect(*places, key=str(tmp_path / "reader.key")).query(lasts, open_steps=True).to_pylist()
    assert [rank.facts["step_source"] for rank in ranks] == ["attach", "attach"]  # nothing was told to them
    assert told == connect(*places, key=str(tmp_path / "job.key")).query(lasts, open_steps=True).to_pylist()
    assert [rank.facts["step_source"] for rank in ranks] == ["attach", "group_seq"]
    assert told[0]["step"] + 7 == told[1]["step"]


def test_the_others_of_a_job_are_named_by_an_agent_that_answers(agent: Any, serving: Any) -> None:
    """The first one of that host may hold its GIL."""
    zero, one = agent(0, world_size=2), agent(1, world_size=2)
    zero.deaf = {wire.HELLO, wire.PEERS}
    one.server.handlers[wire.PEERS] = lambda key, request, payload: (
        asked.append(key) or one.server.reply(key, wire.KNOWN, ranks=[None, None])
    )
    asked: list[Any] = []
    whole = serving(zero, one).address._replace(whole_job=True)
    with Connection(Resolved("job", [whole]), 1.0) as job:
        assert len(asked) == 1 and [facts.rank for facts in job.agents] == [1]
    zero.close()  # the server would wait for its answer


def test_a_rank_whose_host_has_no_address_here_is_silent_for_that_reason(
    agent: Make, serving: Any, tmp_path: Any
) -> None:
    """The others are asked where they are."""
    keys.create(str(tmp_path / "job.key"))
    zero, one = agent(0, world_size=3), agent(1, world_size=3)
    places = [serving(each, key=tmp_path / "job.key").at_port for each in (zero, one)]
    hosts = (places[0].url, places[1].url.replace("127.0.0.1", "localhost"), "tcp://no-such-host.invalid:1")
    ids = (zero.facts["id"], one.facts["id"], "two")
    records = [
        {"endpoint": url, "served": {"server": "", "tcp": None}, "host": "there", "pid": 7, "id": id}
        for url, id in zip(hosts, ids, strict=True)
    ]
    zero.server.handlers[wire.PEERS] = lambda key, request, payload: zero.server.reply(key, wire.KNOWN, ranks=records)
    whole = places[0]._replace(whole_job=True)
    with Connection(Resolved("job", [whole]), 5.0, key=str(tmp_path / "job.key")) as job:
        assert [facts.rank for facts in job.agents] == [0, 1]
        (lost,) = job.query("SELECT rank, why FROM probe.agents WHERE state <> 'answers'").to_pylist()
        assert lost["rank"] == 2 and "its host no-such-host.invalid has no address here" in lost["why"]


def test_a_name_for_which_no_address_comes_in_time_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()

    def slow(name: str, *_: Any, **__: Any) -> list[Any]:
        if name == "slow":
            answered.wait(60)
        return [(socket.AF_INET6, 1, 6, "", ("::1", 0, 0, 0)), (socket.AF_INET, 1, 6, "", ("10.0.0.7", 0))]

    monkeypatch.setattr(host_names.socket, "getaddrinfo", slow)
    assert numeric(["node7", "node8", "node7"], time.monotonic() + 60) == dict.fromkeys(("node7", "node8"), "10.0.0.7")
    assert numeric(["slow"], time.monotonic()) == {}
    answered.set()
    assert in_numbers("tcp://node7:29600", "::1") == "tcp://[::1]:29600"
