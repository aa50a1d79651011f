"""Perfetto's packets, many at once.

Called by perfetto.py.  A packet made by Perfetto's own classes takes 3 to 5 µs, and a million slices take two million.
So one of each shape is made by them, and its bytes are copied with other numbers in them.  Invariant: every byte but
those of numbers comes from Perfetto's classes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays.integers import Bools, Ints
from ..errors import UsageError

Bytes = npt.NDArray[np.uint8]
Numbers = Mapping[str, Any]

_SEQUENCE = 1  # names are interned for all packets of a sequence
_MANY = 1 << 16  # events that are packed at once
_CLOCKS = 6, 1  # BUILTIN_CLOCK_BOOTTIME, which timestamps are of by default, and _REALTIME


@dataclass(frozen=True)
class Argument:
    """A value of each slice.  field: where DebugAnnotation has it; values: int64 or float64; valid: which have one."""

    name: str
    field: str
    values: Any
    valid: Bools


@dataclass(frozen=True)
class Slices:
    """Arrays of one length: the number of a track, two times in ns, the number of a name; 0 is no flow."""

    category: str
    track: Ints
    start: Ints
    end: Ints
    name: Ints
    flow: Ints
    arguments: list[Argument]


class Packets:
    """A trace in the making."""

    def __init__(self) -> None:
        self._builder, self._protos = _perfetto()
        self._numbers: dict[tuple[str, str], int] = {}
        self._tracks = 0
        self.parts: list[bytes] = []

    def begin(self, at_ns: int) -> None:
        """All times are UTC: say so of this one."""
        snapshot = self._protos.ClockSnapshot()
        for clock in _CLOCKS:
            snapshot.clocks.add(clock_id=clock, timestamp=at_ns)
        ordered = self._protos.TrackDescriptor(uuid=0, child_ordering=self._protos.TrackDescriptor.EXPLICIT)
        self._add(sequence_flags=self._protos.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED, clock_snapshot=snapshot)
        self._add(track_descriptor=ordered)

    def track(self, name: str, parent: int = 0, place: int = 0, counter: bool = False) -> int:
        """The number of a new track.  place: among its siblings."""
        self._tracks += 1
        described = self._protos.TrackDescriptor(
            uuid=self._tracks, name=name, parent_uuid=parent, sibling_order_rank=place,
            child_ordering=self._protos.TrackDescriptor.EXPLICIT,
            counter=self._protos.CounterDescriptor() if counter else None,
        )  # fmt: skip
        self._add(track_descriptor=described)
        return self._tracks

    def interned(self, kind: str, texts: Sequence[str]) -> list[int]:
        """The numbers of texts.  kind: a field of InternedData; each has numbers of its own."""
        data = self._protos.InternedData()
        for text in texts:
            if (kind, text) not in self._numbers:
                number = self._numbers[kind, text] = len(self._numbers) + 1
                value = {"str": text.encode()} if kind == "debug_annotation_string_values" else {"name": text}
                getattr(data, kind).add(iid=number, **value)
        self._add(interned_data=data)
        return [self._numbers[kind, text] for text in texts]

    def slices(self, slices: Slices, order: Ints) -> None:
        """order: i where slice i begins, ~i where it ends; on each track as they follow each other."""
        (category,) = self.interned("event_categories", [slices.category])
        keys = self.interned("debug_annotation_names", [each.name for each in slices.arguments])
        for low in range(0, len(order), _MANY):
            self.parts.append(self._events(slices, order[low : low + _MANY], category, keys))

    def counter(self, track: int, times: Ints, values: Any) -> None:
        def packet(number: Numbers) -> bytes:
            event = self._event("TYPE_COUNTER", track, double_counter_value=number["value"])
            return self._packed(timestamp=number["time"], track_event=event)

        if len(times):
            self.parts.append(in_bulk(packet, {"time": times, "value": values.astype(np.float64)}).tobytes())

    def _events(self, slices: Slices, order: Ints, category: int, keys: list[int]) -> bytes:
        """Begins are alike that have values for the same arguments."""
        row = np.where(order < 0, ~order, order)
        shape = np.where(order < 0, -1, slices.flow[row] > 0)
        for place, each in enumerate(slices.arguments, 1):
            shape = np.where(order < 0, -1, shape | each.valid[row].astype(np.int64) << place)
        blocks = []
        for one in np.unique(shape).tolist():
            here = np.flatnonzero(shape == one)
            made = self._ends(slices, row[here]) if one < 0 else self._begins(slices, row[here], one, category, keys)
            blocks.append((here, made))
        return interleaved(blocks, len(order))

    def _ends(self, slices: Slices, row: Ints) -> Bytes:
        def packet(number: Numbers) -> bytes:
            return self._packed(timestamp=number["time"], track_event=self._event("TYPE_SLICE_END", number["track"]))

        return in_bulk(packet, {"time": slices.end[row], "track": slices.track[row]})

    def _begins(self, slices: Slices, row: Ints, shape: int, category: int, keys: list[int]) -> Bytes:
        present = {key: each for key, each in zip(keys, slices.arguments, strict=True) if each.valid[row[0]]}
        columns = {"time": slices.start[row], "track": slices.track[row], "name": slices.name[row]}
        columns |= {str(key): each.values[row] for key, each in present.items()}
        if shape & 1:
            columns["flow"] = slices.flow[row].astype(np.uint64)

        def packet(number: Numbers) -> bytes:
            event = self._event("TYPE_SLICE_BEGIN", number["track"], name_iid=number["name"], category_iids=[category])
            event.flow_ids.extend([number["flow"]] if shape & 1 else [])
            for key, each in present.items():
                event.debug_annotations.add(name_iid=key, **{each.field: number[str(key)]})
            return self._packed(timestamp=number["time"], track_event=event)

        return in_bulk(packet, columns)

    def _event(self, type: str, track: int, **fields: Any) -> Any:
        return self._protos.TrackEvent(type=self._protos.TrackEvent.Type.Value(type), track_uuid=track, **fields)

    def _add(self, **fields: Any) -> None:
        self.parts.append(self._packed(**fields))

    def _packed(self, **fields: Any) -> bytes:
        builder = self._builder()
        builder.add_packet().MergeFrom(self._protos.TracePacket(trusted_packet_sequence_id=_SEQUENCE, **fields))
        return bytes(builder.serialize())


def _perfetto() -> tuple[Any, Any]:
    try:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2
        from perfetto.trace_builder.proto_builder import TraceProtoBuilder
    except ImportError as error:
        raise UsageError(
            f"A trace for Perfetto needs the package perfetto: {error}.", "Run: pip install perfetto",
            code="needs-package",
        ) from error  # fmt: skip
    return TraceProtoBuilder, perfetto_trace_pb2


def in_bulk(packet: Callable[[Numbers], bytes], columns: Mapping[str, Any]) -> Bytes:
    """What packet() makes of each row of these numbers, as a row of bytes.

    int64: written as a varint, as long in all rows as the largest needs; float64 and uint64: as they are, in 8 bytes.
    Where each number lies is found by changing it: no byte stays the same then.
    """
    encoded = {name: _encoded(values) for name, values in columns.items()}
    some = {name: _sample(columns[name].dtype, each.shape[1], 1) for name, each in encoded.items()}
    model = np.frombuffer(packet(some), np.uint8)
    rows = np.tile(model, (len(next(iter(encoded.values()))), 1))
    for name, each in encoded.items():
        other = _sample(columns[name].dtype, each.shape[1], 2)
        rows[:, np.flatnonzero(model != np.frombuffer(packet(some | {name: other}), np.uint8))] = each
    return rows


def _sample(dtype: Any, width: int, which: int) -> Any:
    """The least or the largest number that takes so many bytes, or two that differ in all eight."""
    if dtype == np.int64:
        return 1 << 7 * (width - 1) if which == 1 else (1 << 7 * width) - 1
    (number,) = struct.unpack("<d" if dtype == np.float64 else "<Q", bytes([which]) * 8)
    return number


def _encoded(values: Any) -> Bytes:
    if values.dtype != np.int64:
        return np.ascontiguousarray(values).view(np.uint8).reshape(-1, 8)
    width = max(1, -(-int(values.max()).bit_length() // 7))
    result = np.empty((len(values), width), np.uint8)
    for place in range(width):
        result[:, place] = (values >> 7 * place & 127) | (128 if place < width - 1 else 0)
    return result


def interleaved(blocks: list[tuple[Ints, Bytes]], count: int) -> bytes:
    """The rows of all blocks in one sequence.  blocks: where each row comes in it, and the rows."""
    widths = np.zeros(count, np.int64)
    for place, rows in blocks:
        widths[place] = rows.shape[1]
    ends = np.cumsum(widths)
    result = np.empty(int(ends[-1]) if count else 0, np.uint8)
    for place, rows in blocks:
        width = rows.shape[1]
        result[(ends[place] - width)[:, None] + np.arange(width)] = rows
    return result.tobytes()
