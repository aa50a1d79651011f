"""The agent's thread: it lets go of the GIL while it has much to send, and no fault of a tick ends it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from raw_client import RawClient

from probe import protocol as wire
from probe.agent.serve import server as of_server
from probe.agent.serve.listening import Listener
from probe.agent.serve.server import Key, Server


@pytest.fixture
def server(short_folder: Path) -> Iterator[Server]:
    import os

    made = Server(Listener(f"{short_folder}/s"), {os.getuid()})
    yield made
    made.stop()
    for thread in threading.enumerate():
        if thread.name == "server":
            thread.join()
    made.close()


@pytest.fixture
def client(server: Server) -> Iterator[RawClient]:
    """Who has said hello, which server does not answer by itself."""
    server.handlers[wire.HELLO] = lambda key, request, payload: server.reply(key, wire.WELCOME) and None
    made = RawClient(server.endpoint, timeout_s=10.0)
    yield made
    made.close()


def run(server: Server) -> None:
    threading.Thread(target=server.run, name="server").start()


def test_it_sleeps_after_each_stretch_of_work(
    server: Server, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, slept = [0.0], []
    sleep = of_server.time.sleep

    def rest(seconds: float) -> None:
        slept.append(clock[0])
        sleep(0)

    def messages() -> Iterator[Any]:
        for _ in range(40):
            clock[0] += 2**-13  # 122 µs, and exact
            yield 1, [wire.encode(wire.ROWS, first=1, rows=1), b"", b""]

    server.handlers["work"] = lambda key, request, payload: server.stream(key, 64, messages())
    run(server)
    client.hello()
    monkeypatch.setattr(of_server.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(of_server.time, "sleep", rest)
    client.ask(b"1", "work")
    while client.answer()[0]["kind"] == wire.ROWS:
        pass
    assert len(slept) == 20  # after each second piece: one is shorter than a stretch


def test_what_other_threads_have_posted_goes_out_before_a_reply(server: Server, client: RawClient) -> None:
    def ask(key: Key, request: dict[str, Any], payload: Any) -> None:
        server.post((key[0], b"earlier"), wire.END, rows=7)
        server.reply(key, wire.END, rows=0)

    server.handlers["ask"] = ask
    run(server)
    client.hello()
    client.ask(b"1", "ask")
    assert [client.answer()[0]["rows"] for _ in range(2)] == [7, 0]


def test_a_tick_that_raises_is_told_and_the_next_one_comes(server: Server, client: RawClient) -> None:
    ticks = threading.Semaphore(0)

    def tick() -> float:
        ticks.release()
        raise RuntimeError("a clock that is broken")

    server.on_tick = tick
    server.handlers["ask"] = lambda key, request, payload: server.reply(key, wire.END, rows=0) and None
    run(server)
    assert ticks.acquire(timeout=10) and ticks.acquire(timeout=10)
    client.hello()
    client.ask(b"1", "ask")
    assert client.answer()[0]["kind"] == wire.END
    assert "a clock that is broken" in server.fault
