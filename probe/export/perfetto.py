"""A job's rows as a trace that Perfetto opens: a group of tracks for each rank, all on one clock.

Called by `probe ENDPOINT export --perfetto`.  Ranks of one host share its monotonic clock, so all times of a host are
moved by the same offset, to UTC.  Invariant: every row is a slice, or has its values on counters, or is counted as left
out.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from ..arrays.integers import Bools, Ints, distinct
from ..errors import UsageError
from ..query.result import Result
from .perfetto_lanes import lanes
from .perfetto_packets import Argument, Packets, Slices
from .perfetto_rows import BASE, KINDS, NOT_COUNTED, Kind


class Job(Protocol):
    """What is asked of a Connection."""

    endpoint: str

    def query(self, sql: str, *, max_fetch: float | None) -> Result: ...


@dataclass(frozen=True)
class Drawn:
    """One kind of track.  rows: that there are; slices, values: that they have become, the latter on counters;
    left_out: rows without a length or a value."""

    kind: str
    rows: int
    slices: int
    values: int
    left_out: int


@dataclass(frozen=True)
class Exported:
    """bytes: of the file; notes: what the user should know about the rows."""

    bytes: int
    ranks: list[int]
    kinds: list[Drawn]
    notes: list[str]

    @property
    def slices(self) -> int:
        return sum(each.slices for each in self.kinds)


def export(job: Job, file: str, steps: tuple[int, int] | None = None, max_fetch: float | None = None) -> Exported:
    """Write a trace of these steps, or of all that there are, to a file.  Raises UsageError, QueryError, SilentError.

    max_fetch: the most bytes to fetch for a kind of track.  Cost: some 6 s for a million rows, and 1 GB.
    """
    trace = _Trace()
    asked = [(kind, job.query(kind.query(steps), max_fetch=max_fetch)) for kind in KINDS]
    drawn = trace.draw([(kind, result.table) for kind, result in asked])
    if not trace.groups:
        which = f'Which there are: probe {job.endpoint} query "SELECT rank, MAX(step) FROM step_trace GROUP BY rank"'
        raise UsageError("There are no rows of such steps." if steps else "There are no rows yet.", which)
    try:
        size = Path(file).write_bytes(b"".join(trace.packets.parts))
    except OSError as error:
        raise UsageError(f"Cannot write {file}: {error.strerror}.") from error
    notes = dict.fromkeys(note.text for _, result in asked for note in result.notes)
    return Exported(size, sorted(trace.groups), drawn, list(notes))


class _Trace:
    """groups: the track of each rank, which holds all its others."""

    def __init__(self) -> None:
        self.packets = Packets()
        self.groups: dict[int, int] = {}
        self._clocks: dict[str, int] = {}
        self._end = 0

    def draw(self, asked: list[tuple[Kind, Any]]) -> list[Drawn]:
        starts = [self._starts(table) for _, table in asked]
        self.packets.begin(min((int(each.min()) for each in starts if len(each)), default=0))
        lengths = [_lengths(table) for _, table in asked]
        ends = (int((start + length).max()) for start, length in zip(starts, lengths, strict=True) if len(start))
        self._end = max(ends, default=0)
        for _, table in asked:
            self._group(table)
        return [
            (self._counters if kind.counts else self._slices)(kind, place, table, start)
            for place, ((kind, table), start) in enumerate(zip(asked, starts, strict=True))
        ]

    def _starts(self, table: Any) -> Ints:
        """In UTC: the first row of a host that is met tells its offset, as for probe.collectives."""
        start, wall = _ints(table["start_ns"]), _ints(table["time"]) * 1000
        host, names = _coded(table["host"])
        for code, name in enumerate(names):
            first = int((host == code).argmax())
            self._clocks.setdefault(name, int(wall[first] - start[first]))
        offsets = np.array([self._clocks[name] for name in names], np.int64)
        return start + offsets[host] if len(names) else start

    def _group(self, table: Any) -> None:
        """Tracks for the ranks that have none yet."""
        rank, host, pid = _ints(table["rank"]), table["host"], table["pid"]
        for number in distinct(rank).tolist():
            if number not in self.groups:
                first = int((rank == number).argmax())
                name = f"rank {number} ({host[first]}, pid {pid[first]})"
                self.groups[number] = self.packets.track(name, place=number)

    def _slices(self, kind: Kind, place: int, table: Any, start: Ints) -> Drawn:
        in_flight, known = _in_flight(table), _valid(table["length_ns"])
        end = np.where(in_flight, np.maximum(self._end, start), start + _lengths(table))
        shown = known | in_flight
        rows, start, end = table.filter(pa.array(shown)), start[shown], end[shown]
        track, order = self._lanes(rows, place, start, end, kind.nests)
        slices = Slices(
            kind.name, track, start, end, self._numbered("event_names", rows["name"])[0], _flows(rows),
            [self._argument(name, rows[name]) for name in rows.column_names if name not in BASE],
        )  # fmt: skip
        self.packets.slices(slices, order)
        return Drawn(kind.name, len(table), len(rows), 0, len(table) - len(rows))

    def _lanes(self, table: Any, place: int, start: Ints, end: Ints, nests: bool) -> tuple[Ints, Ints]:
        """The track of each slice, and the order of their events."""
        name, names = _coded(table["track"])
        rank, track, orders = _ints(table["rank"]), np.zeros(len(start), np.int64), [np.zeros(0, np.int64)]
        group = rank * max(1, len(names)) + name
        for one in distinct(group).tolist():
            here = np.flatnonzero(group == one)
            lane, order = lanes(start[here], end[here], nests)
            number, code = divmod(one, len(names))
            made = [self.packets.track(names[code], self.groups[number], place) for _ in range(int(lane.max()) + 1)]
            track[here] = np.array(made)[lane]
            orders.append(np.where(order < 0, ~here[~order], here[order]))
        return track, np.concatenate(orders)

    def _argument(self, name: str, values: Any) -> Argument:
        if pa.types.is_floating(values.type):
            return Argument(name, "double_value", _floats(values), _valid(values))
        if pa.types.is_integer(values.type):
            return Argument(name, "int_value", _ints(values), _valid(values))
        return Argument(name, "string_value_iid", *self._numbered("debug_annotation_string_values", values))

    def _numbered(self, kind: str, values: Any) -> tuple[Ints, Bools]:
        """Texts as their numbers, and which there are."""
        code, texts = _coded(values)
        numbers = np.array([*self.packets.interned(kind, texts), 0], np.int64)
        return numbers[code], code >= 0

    def _counters(self, kind: Kind, place: int, table: Any, start: Ints) -> Drawn:
        """Each numeric column as a counter, one for each device where there are several."""
        device, devices = _coded(table["device"]) if "device" in table.column_names else (np.zeros_like(start), [""])
        rank, drawn, any_value = _ints(table["rank"]), 0, np.zeros(len(start), np.bool_)
        for name in table.column_names:
            if name in NOT_COUNTED or not _is_number(table[name].type):
                continue
            values, valid = _floats(table[name]), _valid(table[name])
            any_value |= valid
            for number in distinct(rank).tolist():
                for code, of in enumerate(devices):
                    here = np.flatnonzero(valid & (rank == number) & (device == code))
                    if len(here):
                        track = self.packets.track(f"{of} {name}".strip(), self.groups[number], place, counter=True)
                        self.packets.counter(track, start[here], values[here])
                        drawn += len(here)
        return Drawn(kind.name, len(table), 0, drawn, int((~any_value).sum()))


def _in_flight(table: Any) -> Bools:
    """Which slices have not ended yet."""
    if "in_flight" not in table.column_names:
        return np.zeros(len(table), np.bool_)
    return np.asarray(table["in_flight"].to_numpy(), np.bool_)


def _lengths(table: Any) -> Ints:
    """0 where it is not known."""
    return _ints(table["length_ns"]) if "length_ns" in table.column_names else np.zeros(len(table), np.int64)


def _flows(table: Any) -> Ints:
    return _ints(table["flow"]) if "flow" in table.column_names else np.zeros(len(table), np.int64)


def _is_number(type: Any) -> bool:
    return bool(pa.types.is_integer(type) or pa.types.is_floating(type))


def _valid(values: Any) -> Bools:
    return np.asarray(values.is_valid().to_numpy(), np.bool_)


def _ints(values: Any) -> Ints:
    """0 for NULL."""
    return np.asarray(values.cast(pa.int64()).fill_null(0).to_numpy(), np.int64)


def _floats(values: Any) -> Any:
    return values.cast(pa.float64()).fill_null(0.0).to_numpy()


def _coded(values: Any) -> tuple[Ints, list[str]]:
    """The place of each text among those that occur; -1 for NULL."""
    coded = pa.chunked_array(values.chunks, values.type).cast(pa.string()).combine_chunks().dictionary_encode()
    return coded.indices.fill_null(-1).to_numpy().astype(np.int64), coded.dictionary.to_pylist()
