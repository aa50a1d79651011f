"""A snapshot of torch's allocator, packed by the agent and unpacked by the reader."""

from __future__ import annotations

import base64
import json
import zlib
from copy import deepcopy
from typing import Any

import pytest
from history import rank_at
from listed_source import EndingSource

import probe
from probe import protocol as wire
from probe.agent.capture.allocator_history import packed
from probe.memory.allocations import allocations, snapshot_of
from probe.snapshot.snapshot import Snapshot
from probe.tables.python.allocation_trace import TABLE

INNER = {"name": "forward", "filename": "/x/site-packages/torch/nn/linear.py", "line": 9}
OUTER = {"name": "train", "filename": "/home/u/train.py", "line": 3}


def entry(action: str, time_us: int, size: int, **fields: Any) -> dict[str, Any]:
    return {"action": action, "size": size, "stream": 7, "time_us": time_us, "pool_id": [0, 0], **fields}


SNAPSHOT: dict[str, Any] = {
    "device_traces": [
        [],
        [
            entry("alloc", 10, 100, addr=1 << 46, frames=[INNER, OUTER]),
            entry("alloc", 12, 50, addr=4096, frames=[]),
            entry("free_requested", 40, 100, addr=1 << 46, frames=[INNER, OUTER]),
            entry("alloc", 41, 100, addr=1 << 46),
            entry("oom", 50, 1 << 40, device_free=5, frames=[OUTER]),
            entry("snapshot", 60, 0, addr=0),
        ],
    ],
    "segments": [
        {"address": 4096, "total_size": 1 << 20, "frames": [], "blocks": [{"size": 512, "frames": [INNER, OUTER]}]}
    ],
    "allocator_settings": {"expandable_segments": False},
}


def text_of(snapshot: dict[str, Any]) -> str:
    return base64.b64encode(packed(deepcopy(snapshot))).decode()


def test_what_was_packed_is_torchs_snapshot_again() -> None:
    assert snapshot_of(text_of(SNAPSHOT)) == SNAPSHOT
    entries = [deepcopy(each) for _ in range(100) for each in SNAPSHOT["device_traces"][1]]
    many = {**SNAPSHOT, "device_traces": [entries]}
    assert snapshot_of(text_of(many)) == many
    assert snapshot_of("") == {}


def test_an_alloc_lasts_until_its_address_is_freed_and_is_the_innermost_users() -> None:
    rows = list(allocations(snapshot_of(text_of(SNAPSHOT)), wall_offset_ns=1000))
    assert [(row.action, row.duration, row.bytes) for row in rows] == [
        ("alloc", 30e-6, 100), ("alloc", None, 50), ("free_requested", None, 100), ("alloc", None, 100),
        ("oom", None, 1 << 40),
    ]  # fmt: skip
    first, _, _, bare, oom = rows
    assert (first.device, first.address, first.start_ns, first.stream) == ("cuda:1", hex(1 << 46), 9000, 7)
    assert [str(frame) for frame in first.frames] == ["forward (torch/nn/linear.py:9)", "train (train.py:3)"]
    assert first.innermost is not None and first.innermost.function == "train"
    assert bare.innermost is None and oom.address is None


@pytest.mark.parametrize(
    "lines",
    [
        "no JSON",
        [["entries", 0, [entry("alloc", 1, 1, frames=3)]], ["stacks", [], []]],
        [["entries", 0, [entry("alloc", 1, "1")]], ["stacks", [], []]],  # type: ignore[arg-type]
        [["entries", "0", []], ["stacks", [], []]],
    ],
)
def test_what_an_agent_packed_wrongly_is_refused(lines: Any) -> None:
    text = "\n".join(map(json.dumps, lines)) if isinstance(lines, list) else lines
    for bad in (base64.b64encode(zlib.compress(text.encode())), base64.b64encode(text.encode()), b"%"):
        with pytest.raises(probe.AgentError):
            snapshot_of(bad.decode())


def test_a_rank_that_ends_meanwhile_is_not_in_the_table() -> None:
    ranks = [rank_at(number, 10**9) for number in (0, 1)]
    past = {"packed": text_of(SNAPSHOT), "wall_offset_ns": 0}
    source = EndingSource({rank: {} for rank in ranks}, {wire.HISTORY: dict.fromkeys(ranks, past)})
    found = TABLE.derive_job(Snapshot([source]))  # type: ignore[misc]
    assert found["rank"].to_pylist() == [0] * 5
