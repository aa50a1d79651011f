"""The history of a rank's device allocators: torch's own snapshot again, and a row for each thing that they did.

Called by python.allocation_trace and by histories.  Invariant: pure, and nothing is unpickled.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..derive.profile_stacks import innermost_of_users
from ..errors import AgentError
from ..snapshot.stacks import Frame

_MOST_BYTES = 1 << 30
_ALLOC, _FREE, _SNAPSHOT = "alloc", "free_requested", "snapshot"


@dataclass(frozen=True)
class Allocation:
    """start_ns: on the monotonic clock of the rank's host; duration: of an alloc until its free, in s; frames:
    innermost first."""

    start_ns: int
    device: str
    action: str
    bytes: int
    address: str | None
    stream: int
    duration: float | None
    frames: tuple[Frame, ...]

    @property
    def innermost(self) -> Frame | None:
        """The innermost frame of code that is not a library's."""
        return innermost_of_users(self.frames) if self.frames else None


def snapshot_of(packed: str) -> dict[str, Any]:
    """As torch.cuda.memory._snapshot() made it in the rank, {} if it has recorded none.  Raises AgentError."""
    if not packed:
        return {}
    try:
        return _unpacked(packed)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, zlib.error) as error:
        raise AgentError(f"An agent sent a history that cannot be read: {error!r}.", code="protocol") from None


def allocations(snapshot: Mapping[str, Any], wall_offset_ns: int) -> Iterator[Allocation]:
    """What the allocator of each device did, in order."""
    frames = _Frames()
    for device, entries in enumerate(snapshot.get("device_traces", ())):
        durations = _durations(entries)
        for entry, duration in zip(entries, durations, strict=True):
            if entry["action"] != _SNAPSHOT:  # that is ours, at the end
                address = entry.get("addr")
                yield Allocation(
                    entry["time_us"] * 1000 - wall_offset_ns, f"cuda:{device}", entry["action"], entry["size"],
                    None if address is None else f"{address:#x}", entry["stream"], duration,
                    frames.of(entry.get("frames", ())),
                )  # fmt: skip


def _durations(entries: Sequence[Mapping[str, Any]]) -> list[float | None]:
    """Of each alloc, how long it was until its address was freed; None of one that was not freed, and of others."""
    found: list[float | None] = [None] * len(entries)
    open_: dict[int, int] = {}
    for place, entry in enumerate(entries):
        if entry["action"] == _ALLOC:
            open_[entry["addr"]] = place
        elif entry["action"] == _FREE and (begin := open_.pop(entry["addr"], None)) is not None:
            found[begin] = (entry["time_us"] - entries[begin]["time_us"]) / 1e6
    return found


class _Frames:
    """Equal stacks are one list in a snapshot."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Frame, ...]] = {}

    def of(self, frames: Sequence[Mapping[str, Any]]) -> tuple[Frame, ...]:
        if id(frames) not in self._known:
            self._known[id(frames)] = tuple(Frame(each["filename"], each["line"], each["name"]) for each in frames)
        return self._known[id(frames)]


def _unpacked(packed: str) -> dict[str, Any]:
    unpacker = zlib.decompressobj()
    text = unpacker.decompress(base64.b64decode(packed, validate=True), _MOST_BYTES)
    if not unpacker.eof:
        raise ValueError("it is cut off, or too large")
    *lines, (_, frames, stacks) = map(json.loads, text.splitlines())
    shared = [{"name": str(name), "filename": str(file), "line": int(line)} for name, file, line in frames]
    whole = {number: [shared[place] for place in stack] for number, stack in enumerate(stacks)}
    traces: list[list[Any]] = []
    snapshot: dict[str, Any] = {"segments": [], "device_traces": traces}
    for kind, *rest in lines:
        if kind == "entries":
            traces.extend([] for _ in range(len(traces), rest[0] + 1))
            traces[rest[0]] += _with_frames(rest[1], whole)
        elif kind == "segments":
            snapshot["segments"] += _with_frames(rest[0], whole)
            for segment in rest[0]:
                _with_frames(segment["blocks"], whole)
        else:
            snapshot |= rest[0]
    _check(traces)
    return snapshot


def _with_frames(things: list[dict[str, Any]], stacks: Mapping[int, list[Any]]) -> list[dict[str, Any]]:
    for each in things:
        if "frames" in each:
            each["frames"] = stacks[each["frames"]]
    return things


def _check(traces: Sequence[Sequence[Mapping[str, Any]]]) -> None:
    """Raises what _unpacked() may raise."""
    for entry in (each for trace in traces for each in trace):
        numbers = entry["size"], entry["stream"], entry["time_us"], entry.get("addr", 0)
        if not all(type(each) is int for each in numbers) or type(entry["action"]) is not str:
            raise ValueError(f"an entry is {str(entry)[:80]}")
