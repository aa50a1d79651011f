"""Whatever a client does to the server beside a job, the training goes on and others are answered soon again.

Each case is a way to end a process that has bound a libzmq ROUTER, or to make it take memory; ATTACKS says how often
each is tried.  The server may die of it: that is what it is there for.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from attacking import HELLO, Attacker, anonymous_kb, command
from until import until

from probe import keys
from target import Probe, Start, Target

ROUNDS = int(os.environ.get("ATTACKS", "3"))
MEMORY_KB = 8 * 1024


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


def heartbeat(attacker: Attacker) -> None:
    """Fill its queue, and be gone without a good-bye."""
    for tcp in (False, True):
        with attacker.dealer(tcp, heartbeat_ivl=1, heartbeat_timeout=60_000) as made:
            for number in range(3000):
                made.send_multipart([b"1", attacker.agent, b'{"kind": "stacks"}'])
                time.sleep(0.001 if number % 100 == 0 else 0)


def ping(attacker: Attacker) -> None:
    """PINGs between messages that nobody reads the replies of."""
    made = attacker.raw()
    message = b"\x01\x011\x01" + bytes([len(attacker.agent)]) + attacker.agent + b'\x00\x12{"kind": "stacks"}'
    with contextlib.suppress(OSError):
        made.sendall((message + command(b"\x04PING\0\0")) * 5000)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    made.close()


def identity(attacker: Attacker) -> None:
    """Take names that the next nameless clients are to get."""
    held = []
    for number in range(64):
        with contextlib.suppress(OSError):
            held.append(attacker.raw(b"\0" + struct.pack(">I", number)))
    with attacker.dealer(routing_id=b"x" * 200) as made:
        made.send_multipart([b"1", b"", b'{"kind": "agents"}'])
    for each in held:
        each.close()


def crowd(attacker: Attacker) -> None:
    """Connections that say nothing, or half of a greeting."""
    held = []
    with contextlib.suppress(OSError):
        for number in range(1000):
            made = socket.socket(socket.AF_UNIX if number % 2 else socket.AF_INET)
            made.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                made.connect(attacker.path if number % 2 else ("127.0.0.1", attacker.port))
            held.append(made)
            with contextlib.suppress(OSError):
                made.send(HELLO[: number % len(HELLO)])
    for each in held:
        each.close()


def large(attacker: Attacker) -> None:
    """One message of many large frames."""
    with attacker.dealer() as made:
        made.send_multipart([b"1", attacker.agent, *[bytes(1 << 20)] * 100])
        time.sleep(0.5)


def garbage(attacker: Attacker) -> None:
    """Bytes that are no protocol, and messages that are no requests."""
    for says in (b"GET / HTTP/1.1\r\n\r\n", bytes(range(256)) * 64, HELLO + b"\x02" + b"\xff" * 8 + b"x"):
        with socket.socket(socket.AF_UNIX) as made:
            made.connect(attacker.path)
            made.sendall(says)
    with attacker.dealer() as made:
        for frames in ([b""], [b"1"] * 2000, [b"1", attacker.agent, b"{"], [b"1", b"", b'{"kind": "hello"}']):
            made.send_multipart(frames)


CASES: list[Callable[[Attacker], None]] = [heartbeat, ping, identity, crowd, large, garbage]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("attack", CASES, ids=lambda each: each.__name__)
def test_the_training_outlives_it_and_others_are_answered(
    job: Target, probe: Probe, key: Path, attack: Callable[[Attacker], None]
) -> None:
    attacker = Attacker(job.pid, key.with_name("reader.key"))
    probe(f"ipc://{attacker.path}", "eval", "--now", "1")
    at_port = (f"tcp://127.0.0.1:{attacker.port}", "eval", "--key", key, "--now", "6*7")
    before = anonymous_kb(job.pid)
    for _ in range(ROUNDS):
        attack(attacker)
        until(lambda: probe(*at_port, status=None).stdout == "42\n")
        assert probe(f"ipc://{attacker.path}", "eval", "--now", "6*7").stdout == "42\n"
        assert job.alive
    until(lambda: anonymous_kb(job.pid) - before < MEMORY_KB, why=lambda: anonymous_kb(job.pid) - before)
    stepped = job.output
    assert probe(job.pid, "query", "SELECT 1").returncode == 0 and stepped is not None
