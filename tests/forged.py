"""Requests that are none, or nearly one: forged and malformed ones of every kind."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

from probe import protocol as wire
from probe.streams import STREAMS

# What a well-meaning reader asks.  Without detach, which is obeyed whatever stands beside it, and without serve, after
# which nobody would find the server.
VALID: list[tuple[dict[str, Any], list[bytes]]] = [
    ({"kind": "hello", "protocol": wire.PROTOCOL, "version": "0", "by": "fuzz"}, []),
    ({"kind": "snapshot"}, []),
    *(
        ({"kind": "scan", "stream": stream, "first": 1, "last": 1 << 40, "credit": 16, "patch": [[0, 8]]}, [bytes(64)])
        for stream in STREAMS
    ),
    ({"kind": "log", "first": 8, "last": 1 << 40, "credit": 16}, []),
    ({"kind": "next", "credit": 8}, []),
    ({"kind": "cancel", "of": "1"}, []),
    ({"kind": "stacks"}, []),
    ({"kind": "memory"}, []),
    ({"kind": "align", "base": 0, "source": "attach"}, []),
    ({"kind": "set", "settings": {"budget_pct": 1.0}}, []),
    (
        {
            "kind": "arm",
            "by": "fuzz",
            "ranks": None,
            "where": "now",
            "timeout": 1.0,
            "write": False,
            "filename": "<fuzz>",
        },
        [b"1 + 1"],
    ),
    ({"kind": "go", "of": "1", "count": -1}, []),
    ({"kind": "run", "of": "1"}, []),
    ({"kind": "stay", "of": "1"}, []),
    ({"kind": "pass", "of": "1", "number": 1, "why_not": "", "last": False}, []),
    ({"kind": "flight"}, []),
    ({"kind": "peers"}, []),
]
# What a reader must not do, whatever else stands in the request: each of these would be seen.
FORBIDDEN: list[tuple[dict[str, Any], list[bytes]]] = [
    ({"kind": "hello", "protocol": wire.PROTOCOL, "version": "0", "by": "fuzz", "role": "control"}, []),
    ({"kind": "detach"}, []),
    ({"kind": "serve", "served": {"server": "ipc:///nowhere", "tcp": None}}, []),
    ({"kind": "set", "settings": {"sample": 7}}, []),
    ({"kind": "align", "base": 10**6, "source": "group_seq"}, []),
]
# What is asked of the job's server itself.
OF_SERVER: list[tuple[dict[str, Any], list[bytes]]] = [
    ({"kind": "agents", "protocol": wire.PROTOCOL, "ids": None}, []),
    (
        {
            "kind": "query", "protocol": wire.PROTOCOL, "version": "0", "ids": [], "endpoint": "x", "sql": "SELECT 1",
            "open_steps": False, "min_ranks": None, "max_fetch": None, "timeout": 1.0, "explain": False,
            "format": "json", "paper": [80, "utf-8"], "pids": 0, "credit": 16,
        },
        [],
    ),
    ({"kind": "next", "of": "1", "credit": 8}, []),
    ({"kind": "cancel", "of": "1"}, []),
    ({"kind": "several", "requests": [["x", {"kind": "stay", "of": "1"}]]}, []),
]  # fmt: skip
ODD: list[Any] = [
    None, True, -1, 0, 1, 2**31, 2**63 - 1, -(2**63), 2**64, 10**400, 1e308, float("nan"), float("inf"), "", "x",
    "\ud800", "\0" * 40, "9" * 5000, [], [[]], [[-1, 8]], [[0, -1]], [[0, 1 << 62]], [[0, 8]] * 500, [1, "a", None], {},
    {"kind": "hello"}, {"sample": 10**9}, {"backward": 2}, {"": {}},
]  # fmt: skip


class Fuzz:
    """Makes requests out of such as are in order; the same seed makes the same ones."""

    def __init__(self, seed: int, valid: Sequence[tuple[dict[str, Any], list[bytes]]] = VALID) -> None:
        self.chance = random.Random(seed)
        self._valid = valid
        self._id = 0
        self._kinds = [self.any_bytes, self.mutated, self.wrong_field, self.missing_field, self.valid, self.frames]

    def request(self) -> list[bytes]:
        return self.chance.choice(self._kinds)()

    def any_bytes(self) -> list[bytes]:
        sizes = (0, 1, 9, 200)
        return [self.chance.randbytes(self.chance.choice(sizes)) for _ in range(self.chance.randrange(1, 6))]

    def mutated(self) -> list[bytes]:
        frames = self.valid()
        header = bytearray(frames[1])
        for _ in range(self.chance.randrange(1, 6)):
            header[self.chance.randrange(len(header))] = self.chance.randrange(256)
        return [frames[0], bytes(header), *frames[2:]]

    def wrong_field(self) -> list[bytes]:
        header, payload = self.chance.choice(self._valid)
        name = self.chance.choice(list(header))
        return self._frames({**header, name: self.chance.choice(ODD)}, payload)

    def missing_field(self) -> list[bytes]:
        header, payload = self.chance.choice(self._valid)
        name = self.chance.choice(list(header))
        left = {key: value for key, value in header.items() if key != name}
        return self._frames(left, payload if self.chance.random() < 0.5 else [])

    def valid(self) -> list[bytes]:
        return self._frames(*self.chance.choice(self._valid))

    def frames(self) -> list[bytes]:
        """Too few, too many, empty ones, and a template that is larger than any."""
        frames = self.valid()
        extra = [b"", self.chance.randbytes(100), bytes(8192)]
        return [*frames[: self.chance.randrange(1, len(frames) + 1)], *(self.chance.choice(extra) for _ in range(8))]

    def _frames(self, header: dict[str, Any], payload: list[bytes]) -> list[bytes]:
        self._id = (self._id + 1) % 50  # ids come again, some while their request runs
        id = self.chance.choice([str(self._id).encode()] * 8 + [b"", b"x" * 64, b"x" * 65])
        return [id, json.dumps(header).encode(), *payload]
