"""Processes of another user that show what no agent has written: commands leave them out, and stay as they are."""

from __future__ import annotations

import json
import os
import signal
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from probe import streams
from probe.host import agent_memory
from probe.host.processes import start_ticks
from target import Probe, Start

pytestmark = [
    pytest.mark.alone,  # whoever gives no endpoint finds these processes
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else"),
]

ESCAPE = "\x1b]0;taken over\x07"
LAYOUT = {"slots": ["seq"], "chunks": 1}
Change = Callable[[dict[str, Any]], Any]
WRONG: dict[str, Change] = {
    "nothing": lambda facts: {},
    "a list": lambda facts: [facts],
    "a number": lambda facts: 1,
    "no clock": lambda facts: {**facts, "monotonic_ns": None},
    "a time in the far future": lambda facts: {**facts, "attached_wall_ns": 10**30},
    "a time before all times": lambda facts: {**facts, "attached_wall_ns": -(10**18)},
    "an infinite time": lambda facts: {**facts, "wall_ns": float("inf")},
    "a rank in words": lambda facts: {**facts, "rank": "zero"},
    "a huge rank": lambda facts: {**facts, "rank": 10**12},
    "an escape sequence as its name": lambda facts: {**facts, "name": ESCAPE},
    "an escape sequence as its host": lambda facts: {**facts, "host": ESCAPE},
    "an endpoint with a zero": lambda facts: {**facts, "endpoint": "ipc:///tmp/\0"},
    "an endless endpoint": lambda facts: {**facts, "endpoint": "ipc://" + "/x" * 9000},
    "a server without an endpoint": lambda facts: {**facts, "served": {"tcp": None}},
    "a port in words": lambda facts: {**facts, "served": {"server": "ipc:///tmp/x", "tcp": {"port": "http"}}},
    "streams that are none": lambda facts: {**facts, "streams": {"spans": 7}},
    "a stream without its slots": lambda facts: {**facts, "streams": {"spans": LAYOUT}},
}
DEEP = b"[" * 30000


def shown(text: bytes, inherited: bool = False) -> int:
    """A process of another user with this text in its header.  inherited: it runs as root by now."""
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        os.setresgid(65534, 65534, 0)
        os.setresuid(65534, 65534, 0)
        _show(text)
        if inherited:
            os.setresuid(0, 0, 0)
        os.write(told, b".")
        while True:
            signal.pause()
    assert os.read(ready, 1) == b"."
    os.close(told)
    os.close(ready)
    return child


def _show(text: bytes) -> None:
    own = {b"4242424242": os.getpid(), b"4343434343": start_ticks(os.getpid())}
    for word, number in own.items():
        text = text.replace(word, str(number).encode())
    memory = os.memfd_create(streams.HEADER_NAME)
    os.ftruncate(memory, streams.HEADER_BYTES)
    start = streams.HEADER_HALVES[0]
    os.pwrite(memory, struct.pack(streams.HEADER_LAYOUT, streams.HEADER_MAGIC, streams.HEADER_VERSION, 0), 0)
    os.pwrite(memory, struct.pack(streams.HEADER_HALF_LAYOUT, len(text)) + text, start)


def plausible() -> dict[str, Any]:
    """Facts that an agent could write; the numbers are replaced by the process's own."""
    return {
        "pid": 4242424242, "start_ticks": 4343434343, "id": "0123456789abcdef", "monotonic_ns": 1, "wall_ns": 1,
        "attached_wall_ns": 1, "endpoint": "ipc:///tmp/nobody-listens-here", "name": "evil", "streams": {}, "rank": 0,
    }  # fmt: skip


@pytest.fixture
def foreign() -> Iterator[dict[str, int]]:
    """The pid of a process for each way to be wrong."""
    texts = {name: json.dumps(change(plausible())).encode() for name, change in WRONG.items()}
    pids = {name: shown(text) for name, text in {**texts, "depth": DEEP}.items()}
    yield pids
    for pid in pids.values():
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_what_no_agent_has_written_is_left_out_and_told(foreign: dict[str, int], start: Start, probe: Probe) -> None:
    job = start("loop.py", "--sleep", "0.02")
    probe("attach", "--name", "mine", job.pid)
    listed = probe("list")
    for name in WRONG:
        assert f"Process {foreign[name]} is left out: " in listed.stderr, name
    for words in (["query", "SELECT pid FROM probe.agents"], ["mine", "query", "SELECT pid FROM probe.agents"]):
        answered = probe(*words, "--format", "csv")
        assert answered.stdout == f"pid\n{job.pid}\n"
        assert answered.stderr.count("is left out") == len(WRONG)
    for shows in (listed, answered):
        assert "\x1b" not in shows.stdout + shows.stderr and "[bug]" not in shows.stderr
    for pid in foreign.values():
        assert "[not-attached]" in probe(pid, "query", "SELECT 1", status=3).stderr
    probe("detach")


def test_facts_that_a_program_has_inherited_from_another_user_are_left_out() -> None:
    """As sudo has: it runs as root with the descriptors of who started it."""
    pid = shown(json.dumps(plausible()).encode(), inherited=True)
    try:
        skipped: list[str] = []
        assert agent_memory.facts(pid, skipped) is None
        assert "they are of user 65534" in skipped[0]
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_plausible_facts_of_another_user_are_shown_as_they_are(probe: Probe) -> None:
    pid = shown(json.dumps({**plausible(), "trouble": ESCAPE}).encode())
    try:
        assert agent_memory.facts(pid) is not None
        for words in (["list"], ["evil", "query", "SELECT 1"], [pid, "stack"], [pid, "hang"], [pid, "detach"]):
            done = probe(*words, status=None, timeout=60)
            assert "\x1b" not in done.stdout + done.stderr and "[bug]" not in done.stderr, words
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
