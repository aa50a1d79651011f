"""What NCCL itself says of a job's communicators: its RAS threads, asked over the socket that one of them listens on.

They are there since NCCL 2.24, answer in JSON since 2.28, and listen where NCCL_RAS_ADDR says, else on localhost:28028.
Invariant: nothing is sent to a socket that no process of the job listens on, and an answer is bounded in size and time.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any

from .processes import environment, namespace

_VARIABLE, _ADDRESS = "NCCL_RAS_ADDR", "localhost:28028"
_LISTENS = "0A"  # a state of /proc/net/tcp
_MOST_BYTES = 16 << 20
_PROMPT_S, _TIMEOUT_S = 1.0, 2  # for each small answer, and for what RAS threads ask each other


@dataclass(frozen=True)
class RasRank:
    """One rank of a communicator.  host, pid: as NCCL knows them; calls: by operation; why_missing: of one that no RAS
    thread could be asked about, in words; error: of NCCL, 0 if none."""

    rank: int
    host: str
    pid: int
    calls: Mapping[str, int] = field(default_factory=dict)
    error: int = 0
    aborted: bool = False
    why_missing: str = ""


@dataclass(frozen=True)
class Communicator:
    """size: how many ranks it has; ranks: those that are known, the missing ones included."""

    size: int
    ranks: Sequence[RasRank]


def communicators(pids: Iterable[int], patience_s: float = _TIMEOUT_S + 3.0) -> list[Communicator]:
    """Those of the job with these processes of this host; [] where none of them listens, or the answer is no JSON."""
    for pid in pids:
        port = environment(pid).get(_VARIABLE, _ADDRESS).rpartition(":")[2]
        if not port.isdigit() or namespace(pid, "net") != namespace(os.getpid(), "net"):
            continue
        if (host := _listens_at(pid, int(port))) is not None:
            with contextlib.suppress(OSError, EOFError, ValueError, LookupError, TypeError):
                return _parsed(_asked(host, int(port), time.monotonic() + patience_s))
    return []


def _listens_at(pid: int, port: int) -> str | None:
    """The address at which this process itself listens, as the kernel has it."""
    addresses = dict(_listening(pid, port))
    for name in os.listdir(f"/proc/{pid}/fd") if addresses else ():
        with contextlib.suppress(OSError):  # closed meanwhile
            if (found := addresses.get(os.readlink(f"/proc/{pid}/fd/{name}"))) is not None:
                return found
    return None


def _listening(pid: int, port: int) -> Iterator[tuple[str, str]]:
    """Sockets that listen at this port, and their addresses."""
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/net/{table}", encoding="ascii") as lines:
            for words in map(str.split, lines):
                if len(words) > 9 and words[3] == _LISTENS and words[1].endswith(f":{port:04X}"):
                    yield f"socket:[{words[9]}]", _address(words[1].partition(":")[0])


def _address(text: str) -> str:
    """Of the table's form: 32-bit words as this machine has them."""
    found = ip_address(b"".join(struct.pack("=I", int(text[at : at + 8], 16)) for at in range(0, len(text), 8)))
    return {4: "127.0.0.1", 6: "::1"}[found.version] if found.is_unspecified else str(found)


def _asked(host: str, port: int, end: float) -> str:
    """The status in JSON.  Raises ValueError if this NCCL has only text."""
    with socket.create_connection((host, port), _PROMPT_S) as connection:
        for command, answer in (
            ("CLIENT PROTOCOL 2", "SERVER PROTOCOL"), (f"TIMEOUT {_TIMEOUT_S}", "OK"), ("SET FORMAT json", "OK"),
        ):  # fmt: skip
            connection.sendall(f"{command}\n".encode())
            if not _line(connection).startswith(answer):
                raise ValueError(command)
        connection.sendall(b"VERBOSE STATUS\n")
        came = bytearray()
        while (left := end - time.monotonic()) > 0 and len(came) < _MOST_BYTES:
            connection.settimeout(left)
            piece = connection.recv(1 << 16)
            if not piece:
                return came.decode(errors="replace")
            came += piece
    raise TimeoutError


def _line(connection: socket.socket) -> str:
    came = bytearray()
    while not came.endswith(b"\n") and len(came) < 1024:
        piece = connection.recv(1)
        if not piece:
            raise EOFError
        came += piece
    return came.decode(errors="replace")


def _parsed(text: str) -> list[Communicator]:
    return [
        Communicator(int(each["size"]), [*map(_rank, each["ranks"]), *map(_missing, each["missing_ranks"])])
        for each in json.loads(text)["communicators"]
    ]


def _rank(told: Mapping[str, Any]) -> RasRank:
    calls = {str(name): int(count) for name, count in told["collective_counts"].items()}
    status = told["status"]
    error, aborted = int(status["async_error"]), bool(status["abort_flag"])
    return RasRank(int(told["rank"]), str(told["host"]), int(told["pid"]), calls, error, aborted)


def _missing(told: Mapping[str, Any]) -> RasRank:
    dead = told["status"]["considered_dead"]
    why = "is considered dead" if dead else "does not answer" if told["status"]["unresponsive"] else "has left it"
    return RasRank(int(told["rank"]), str(told["host"]), int(told["pid"]), why_missing=why)
