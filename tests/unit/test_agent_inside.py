"""An attached process is known by the header that its agent keeps in memory."""

from __future__ import annotations

import contextlib
import json
import os
import struct
from collections.abc import Iterator

import pytest

from probe.attach import attach
from probe.attach.inside import agent_inside
from probe.processes import start_ticks
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


ME = {"agent": "0.1.0", "start_ticks": start_ticks(os.getpid()), "rank": 3, "python": "3.11.7", "torch": None}


@pytest.mark.parametrize("active", [0, 1])
def test_the_facts_are_read_from_the_valid_half(active):
    with header(of(ME, active)):
        assert agent_inside(os.getpid()) == ME


def test_a_second_attach_finds_it_without_touching_the_process(monkeypatch):
    monkeypatch.setattr("probe.attach.__version__", "0.1.0")
    with header(of(ME)):
        attached = attach(os.getpid())
    assert (attached.already, attached.rank, attached.python, attached.version) == (True, 3, "3.11.7", "0.1.0")


@pytest.mark.parametrize(
    "content",
    [b"", of(ME, magic=b"\x89PNG\r\n\x1a\n"), of(ME, version=99), of([1]), of({**ME, "start_ticks": 1})],
    ids=["empty", "other magic", "other version", "no object", "inherited by a fork"],
)
def test_anything_else_is_no_agent(content):
    with header(content):
        assert agent_inside(os.getpid()) is None


def test_a_process_without_the_header_or_not_there_at_all_has_none():
    assert agent_inside(os.getpid()) is None
    assert agent_inside(4_194_305) is None
