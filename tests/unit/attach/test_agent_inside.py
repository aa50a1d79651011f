"""An attached process is known by the header that its agent keeps in memory."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import threading
from collections.abc import Iterator

import pytest

from probe.agent.storage.header import Header
from probe.attach import attach
from probe.host.agent_memory import facts as agent_inside
from probe.host.facts import Facts
from probe.host.processes import start_ticks
from probe.streams import HEADER_BYTES, HEADER_HALVES, HEADER_LAYOUT, HEADER_MAGIC, HEADER_NAME, HEADER_VERSION


@contextlib.contextmanager
def header(content: bytes, name: str = HEADER_NAME) -> Iterator[None]:
    descriptor = os.memfd_create(name)
    os.pwrite(descriptor, content.ljust(HEADER_BYTES, b"\0"), 0)
    try:
        yield
    finally:
        os.close(descriptor)


def of(facts: object, active: int = 1, magic: bytes = HEADER_MAGIC, version: int = HEADER_VERSION) -> bytes:
    text = json.dumps(facts).encode()
    start = struct.pack(HEADER_LAYOUT, magic, version, active).ljust(HEADER_HALVES[active], b"\0")
    return start + struct.pack("<I", len(text)) + text


ME = {
    "agent": "0.1.0", "start_ticks": start_ticks(os.getpid()), "rank": 3, "python": "3.11.7", "torch": None,
    "monotonic_ns": 1, "wall_ns": 1, "streams": {},
}  # fmt: skip


@pytest.mark.parametrize("active", [0, 1])
def test_the_facts_are_read_from_the_valid_half(active):
    with header(of(ME, active)):
        assert agent_inside(os.getpid()) == Facts.parse(ME)


def test_a_second_attach_finds_the_agent_without_touching_the_process(monkeypatch):
    monkeypatch.setattr("probe.attach.__version__", "0.1.0")
    with header(of(ME)):
        attached = attach(os.getpid())
    assert (attached.already, attached.rank, attached.python, attached.version) == (True, 3, "3.11.7", "0.1.0")


@pytest.mark.parametrize(
    "content",
    [b"", of(ME, magic=b"\x89PNG\r\n\x1a\n"), of(ME, version=99), of([1]), of({**ME, "start_ticks": 1})],
    ids=["empty", "other magic", "other version", "no object", "inherited by a fork"],
)
def test_memory_that_is_not_an_agents_is_ignored(content):
    with header(content):
        assert agent_inside(os.getpid()) is None


def test_a_process_without_a_header_or_without_existence_has_no_agent():
    assert agent_inside(os.getpid()) is None
    assert agent_inside(4_194_305) is None


def test_an_agent_is_found_while_the_process_opens_and_closes_files():
    stop = threading.Event()

    def churn():
        while not stop.is_set():
            for descriptor in [os.dup(0) for _ in range(50)]:
                os.close(descriptor)

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        with header(of(ME)):
            assert all(agent_inside(os.getpid()) == Facts.parse(ME) for _ in range(300))
    finally:
        stop.set()
        thread.join()


def test_an_agent_is_found_while_it_rewrites_its_facts():
    written, stop = Header(), threading.Event()
    written.write(ME)

    def rewrite():
        while not stop.is_set():
            written.write(ME | {"trouble": "x" * os.urandom(1)[0]})

    thread = threading.Thread(target=rewrite)
    thread.start()
    try:
        assert all(agent_inside(os.getpid()).rank == 3 for _ in range(300))
    finally:
        stop.set()
        thread.join()
        written.close()
