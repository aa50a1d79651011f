"""Ten thousand requests that are none, or nearly one, to the agent of a real training.

What is held: each is answered in order or dropped with its connection, and the training neither stops nor learns other
weights, nor keeps memory, threads or descriptors of it.
"""

from __future__ import annotations

import os
import re
import socket as sockets
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from forged import Fuzz
from raw_client import RawClient
from until import until

from probe import protocol as wire
from probe.agent.evals.evals import CLIENT_TIMEOUT_SECONDS
from probe.agent.serve.connections import MOST_CLIENTS
from probe.host import agent_memory
from probe.host.facts import NO_FACTS
from target import Probe, Start, Target, until_ticked

pytest.importorskip("torch")

REQUESTS = int(os.environ.get("FUZZ", "10000"))
SEED = int(os.environ.get("SEED", "1"))


class Clients:
    """Connections to one agent: polite ones, such as never read, and such as vanish."""

    def __init__(self, pid: int) -> None:
        facts = agent_memory.facts(pid)
        assert facts is not None
        self.path = str(facts.endpoint)
        self._made: list[RawClient] = []

    def connect(self, hello: bool = True, timeout_s: float = 10.0) -> RawClient:
        self._made.append(made := RawClient(self.path, timeout_s))
        if hello:
            assert made.hello()["kind"] == wire.WELCOME
        return made

    def answers(self) -> None:
        """A reader that has just come is served."""
        self.steps()

    def steps(self) -> int:
        """Of the job, so far."""
        one = self.connect(hello=False)
        answer = one.hello()
        one.close()
        assert answer["kind"] == wire.WELCOME
        return int(answer["facts"]["count"])

    def stands(self) -> bool:
        """Does the job not step?"""
        before = self.steps()
        time.sleep(0.3)
        return self.steps() == before

    def until_it_steps(self) -> None:
        until(lambda: not self.stands(), 20)

    def close(self) -> None:
        for each in self._made:
            each.close()


@pytest.fixture(scope="module")
def job(start_once: Start, probe: Probe, tmp_path_factory: pytest.TempPathFactory) -> Target:
    made = start_once("loading.py", str(tmp_path_factory.mktemp("fuzz") / "times"), "0.05", ready="at 100 ")
    probe("attach", made.pid)
    until(lambda: (agent_memory.facts(made.pid) or NO_FACTS).step_source == "optimizer")  # known with the next step
    return made


@pytest.fixture
def clients(job: Target) -> Iterator[Clients]:
    made = Clients(job.pid)
    yield made
    made.close()


def stuff(pid: int) -> dict[str, int]:
    """The least of each over a second: a training has comings and goings of its own.

    rss_kb: without what is shared, which holds the rows that go on being recorded.
    """
    looks = []
    for _ in range(20):
        links = [os.path.join(f"/proc/{pid}/fd", fd) for fd in os.listdir(f"/proc/{pid}/fd")]
        looks.append(
            {
                "rss_kb": int(re.search(r"RssAnon:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]),
                "threads": len(os.listdir(f"/proc/{pid}/task")),
                "descriptors": sum("torch_" not in link_of(link) for link in links),
            }
        )
        time.sleep(0.05)
    return {name: min(look[name] for look in looks) for name in looks[0]}


def link_of(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return "torch_"


def steps(job: Target) -> int:
    return job.output.count("at ")


def weights(job: Target) -> dict[int, str]:
    lines = [line.split() for line in job.output.splitlines()]
    return {int(words[1]): words[2] for words in lines if words[0] == "at" and len(words) == 3}


def storm(clients: Clients, fuzz: Fuzz, requests: int) -> None:
    """Requests over connections that are left in all ways, some before their hello."""
    open_: list[RawClient] = []
    for number in range(requests):
        if number % 100 == 0 or not open_:
            open_.append(clients.connect(hello=number % 300 != 0, timeout_s=0.2))
        while len(open_) > 8:
            open_.pop(fuzz.chance.randrange(len(open_))).close()  # with whatever it has not read
        one = fuzz.chance.choice(open_)
        try:
            one.send(fuzz.request())
            while fuzz.chance.random() < 0.5 and one.poll():
                one.receive()
        except (OSError, EOFError):  # closed for what was sent, or not read because it does not read either
            open_.remove(one)
            one.close()
    for one in open_:
        one.close()


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_ten_thousand_malformed_requests_do_not_harm_a_training_or_its_agent(
    job: Target, clients: Clients, start: Start, tmp_path: Path
) -> None:
    storm(clients, Fuzz(SEED), REQUESTS // 5)  # what is kept once
    clients.answers()
    until(lambda: stuff(job.pid)["descriptors"] < 1000, 45, every_s=0.2)
    until_ticked(job.pid)  # then the agent counts who is gone
    before, trained = stuff(job.pid), steps(job)
    held = []
    for part in range(6):
        storm(clients, Fuzz(SEED + 1 + part), REQUESTS // 6)
        clients.answers()
        held.append(stuff(job.pid)["rss_kb"])
    until(lambda: steps(job) > trained, 45, every_s=0.2)
    until(lambda: stuff(job.pid)["descriptors"] <= before["descriptors"], 45, every_s=0.2)
    after = stuff(job.pid)
    grown = {name: after[name] - before[name] for name in after}
    assert grown["threads"] <= 0 and grown["descriptors"] <= 0, grown
    # what waits for clients comes and goes, by 10 MB; what stays would rise from the first half to the second
    assert min(held[3:]) - min(held[:3]) < 6 * 1024, held
    told = weights(job)
    job_alone = start("loading.py", str(tmp_path / "alone"), ready=f"at {max(told)} ")
    alone = weights(job_alone)
    assert told == {step: digest for step, digest in alone.items() if step in told}


def test_a_client_that_sends_too_large_a_message_is_disconnected(job: Target, clients: Clients) -> None:
    one = clients.connect()
    with pytest.raises((OSError, EOFError)):
        one.send([b"1", wire.encode(wire.HELLO), bytes(wire.MAX_REQUEST_BYTES)])
        one.receive()
    clients.answers()
    assert job.alive


PORT = {"host": "here", "address": "127.0.0.1", "port": 4242, "public": "x", "key_file": "/nowhere"}


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        *(
            (wire.SERVE, {"served": served})
            for served in (
                None, "ipc:///nowhere", {}, {"server": None, "tcp": None}, {"server": 5, "tcp": None},
                {"server": "a\nb", "tcp": None}, {"server": "x" * 257, "tcp": None}, {"server": "ipc:///nowhere"},
                {"server": "ipc:///nowhere", "tcp": 5}, {"server": "ipc:///nowhere", "tcp": {}},
                *({"server": "ipc:///nowhere", "tcp": {**PORT, name: odd}} for name in PORT for odd in (None, -1, [])),
            )
        ),
        *((wire.ALIGN, {"base": base, "source": "optimizer"}) for base in (None, 1.5, "1", True, 1 << 60)),
        *((wire.ALIGN, {"base": 1, "source": source}) for source in (None, 1, "a\nb", "\x1b[31m", "x" * 41)),
    ],
)  # fmt: skip
def test_what_would_spoil_the_agents_facts_is_refused(
    job: Target, clients: Clients, kind: str, fields: dict[str, Any]
) -> None:
    before = clients.connect(hello=False).hello()["facts"]
    one = clients.connect()
    one.ask(b"1", kind, **fields)
    answer = one.answer()[0]
    assert (answer["kind"], answer["code"]) == (wire.ERROR, "protocol")
    after = clients.connect(hello=False).hello()["facts"]
    for name in ("served", "step_source", "step_base"):
        assert after[name] == before[name]


def test_a_message_before_hello_is_small(job: Target, clients: Clients) -> None:
    one = clients.connect(hello=False)
    with pytest.raises((OSError, EOFError)):
        one.send([b"1", wire.encode(wire.HELLO, by="x" * wire.MAX_CONTROL_BYTES)])
        one.receive()
    clients.answers()


@pytest.mark.parametrize(
    "says",
    [
        b"GET / HTTP/1.1\r\n\r\n", bytes(range(256)) * 64, b"\xff" + bytes(9), b"\xff" * 8, bytes(8),
        struct.pack("<II", 100, 65), struct.pack("<III", 10, 1, 11) + bytes(11), struct.pack("<III", 2**32 - 1, 1, 1),
    ],
    ids=["http", "bytes", "zeromq", "lengths of 2^32", "no frame", "65 frames", "lengths that differ", "4 GiB"],
)  # fmt: skip
def test_a_client_that_speaks_another_protocol_is_disconnected(job: Target, clients: Clients, says: bytes) -> None:
    one = clients.connect(hello=False)
    one.socket.sendall(says)
    with pytest.raises((OSError, EOFError)):
        one.receive()
    clients.answers()


def test_a_client_that_stops_in_the_middle_of_a_message_is_dropped_after_a_while(job: Target, clients: Clients) -> None:
    begun = clients.connect()
    begun.socket.settimeout(60)
    begun.socket.sendall(b"".join(wire.packed([b"1", wire.encode(wire.SNAPSHOT)]))[:-1])
    mute = clients.connect(hello=False, timeout_s=60)
    for one in (begun, mute):
        clients.answers()
        with pytest.raises(EOFError):
            one.receive()


def test_descriptors_sent_along_are_not_kept(job: Target, clients: Clients) -> None:
    before = stuff(job.pid)["descriptors"]
    with open(os.devnull) as file:
        for _ in range(20):
            one = clients.connect()
            message = b"".join(wire.packed([b"1", wire.encode(wire.SNAPSHOT)]))
            rights = [(sockets.SOL_SOCKET, sockets.SCM_RIGHTS, struct.pack("4i", *[file.fileno()] * 4))]
            one.socket.sendmsg([message], rights)
            assert one.answer()[0]["kind"] == wire.AT
            one.close()
    until(lambda: stuff(job.pid)["descriptors"] <= before, 45, every_s=0.2)


@pytest.mark.long
def test_a_thousand_connections_leave_nothing_and_delay_nobody(job: Target, clients: Clients, probe: Probe) -> None:
    before = stuff(job.pid)["descriptors"]
    served, refused = [], 0
    for _ in range(1000):
        one = RawClient(clients.path, timeout_s=10)
        answer = one.hello()
        if answer["kind"] == wire.WELCOME:
            served.append(one)
        else:
            assert (answer["code"], len(served)) == ("full", MOST_CLIENTS)
            one.close()
            refused += 1
    assert refused == 1000 - MOST_CLIENTS
    assert stuff(job.pid)["descriptors"] - before <= MOST_CLIENTS
    assert "[full]" in probe(job.pid, "eval", "--now", "1", status=7).stderr
    assert "read from memory: rank 0" in probe(job.pid, "query", "SELECT 1").stderr
    for one in served:
        assert one.hello()["kind"] == wire.WELCOME
        one.close()
    until(lambda: stuff(job.pid)["descriptors"] <= before, 45, every_s=0.2)
    clients.answers()


@pytest.mark.soak
def test_a_client_that_never_reads_holds_a_bounded_amount_of_memory(job: Target, clients: Clients) -> None:
    stuck = [clients.connect(timeout_s=0.5) for _ in range(5)]
    before = stuff(job.pid)["rss_kb"]
    for one in stuck:
        with pytest.raises(TimeoutError):  # it is not read either, at some point
            for number in range(40):
                header = {"stream": "spans", "first": 1, "last": 1 << 40, "credit": 1 << 40, "patch": []}
                one.ask(b"%d" % number, wire.SCAN, b"", **header)
            for _ in range(20_000):
                one.ask(b"0", wire.NEXT, credit=1 << 40)
                one.ask(b"h", wire.HELLO, protocol=wire.PROTOCOL)
    clients.answers()
    assert stuff(job.pid)["rss_kb"] - before < len(stuck) * 16 * 1024
    for one in stuck:
        one.close()
    clients.answers()


def test_armed_snippets_of_vanished_clients_block_nobody(job: Target, clients: Clients) -> None:
    for _ in range(60):
        one = clients.connect()
        arm = {"by": "x" * 50_000, "ranks": None, "where": "boundary", "timeout": None}
        one.ask(b"1", wire.ARM, b"1", **arm)
        assert one.answer()[0]["kind"] == wire.ARMED
        one.ask(b"2", wire.GO, of="1", count=1 << 60)
        one.close()
    one = clients.connect()
    one.ask(b"1", wire.ARM, b"6 * 7", where="boundary", write=False)
    assert one.answer()[0]["kind"] == wire.ARMED
    one.ask(b"2", wire.GO, of="1", count=-1)
    done = one.answer()[0]
    assert (done["kind"], done["echo"]) == (wire.DONE, "42")
    one.close()


@pytest.fixture
def standing(job: Target, clients: Clients) -> Any:
    """A client for which the training stands at a step, until the word comes to run the snippet that is armed."""
    one = clients.connect()
    for ahead in (20, 200, 2000):  # as a client does: a job that has passed the step when it hears of it says so
        one.ask(b"1", wire.ARM, b"6 * 7", where="boundary", write=False)
        count = one.answer()[0]["count"]
        one.ask(b"2", wire.GO, of="1", count=count + ahead)
        while not one.poll(1.0):
            one.ask(b"3", wire.STAY, of="1")
        answer = one.answer()[0]
        if answer.get("code") != "eval-missed":
            break
    assert answer["kind"] == wire.READY, answer
    until(clients.stands, 20)
    assert not one.poll()  # nothing has run
    return one


def test_a_rank_waits_at_the_agreed_step_for_the_order_to_run(standing: Any, clients: Clients) -> None:
    standing.ask(b"3", wire.RUN, of="1")
    done = standing.answer()[0]
    assert (done["kind"], done["echo"]) == (wire.DONE, "42") and done["held_ns"] > 3 * 10**8
    clients.until_it_steps()


def test_a_waiting_rank_goes_on_if_the_client_cancels(standing: Any, clients: Clients) -> None:
    standing.ask(b"3", wire.CANCEL, of="1")
    error = standing.answer()[0]
    assert (error["kind"], error["code"]) == (wire.ERROR, "eval-missed")
    clients.until_it_steps()


def test_a_waiting_rank_goes_on_if_the_order_never_comes(standing: Any, clients: Clients) -> None:
    error = standing.answer()[0]
    assert (error["kind"], error["code"]) == (wire.ERROR, "eval-missed")
    clients.until_it_steps()


def test_a_rank_waits_as_long_as_the_client_asks_it_to(standing: Any, clients: Clients) -> None:
    end = time.monotonic() + CLIENT_TIMEOUT_SECONDS + 1
    while time.monotonic() < end:
        standing.ask(b"3", wire.STAY, of="1")
        assert clients.stands()
    standing.close()
    clients.until_it_steps()


def test_streams_of_a_client_are_limited_and_a_dropped_one_is_reported(job: Target, clients: Clients) -> None:
    one = clients.connect()
    for number in range(6):
        fields = {"stream": "spans", "first": 1, "last": 1 << 40, "credit": 0, "patch": []}
        one.ask(b"%d" % number, wire.SCAN, b"", **fields)
    refused = [one.answer()[0] for _ in range(2)]
    assert [each["message"] for each in refused] == ["4 streams of this client are running already"] * 2
    others = []
    for _ in range(16):
        others.append(clients.connect())
        for number in range(4):
            others[-1].ask(b"%d" % number, wire.SCAN, b"", **fields)
    ids = set()
    for _ in range(4):
        id, header = one.receive()
        ids.add(id)
        assert "dropped: others" in wire.decode(header)["message"]
    assert ids == {b"0", b"1", b"2", b"3"}
    for each in [one, *others]:
        each.close()
