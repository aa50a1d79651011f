"""What a reply must look like to be accepted, and which rows may arrive: an agent may be broken, or another program.

Called by probe.client.client for every reply and by probe.snapshot.log for every record.  Invariant: nothing that has
passed needs its types checked again.  Stdlib only.

A shape is a type, None, a tuple of shapes (any of them), [shape] (a list of them), a dict of shapes (an object with
these fields; "name?" may be missing), or Each(shape) (an object with any names).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .. import protocol as wire
from .. import streams
from ..host.facts import Facts
from ..streams import STREAMS


@dataclass(frozen=True)
class Each:
    """An object whose values all have this shape."""

    shape: Any


@dataclass(frozen=True)
class Whole:
    """An integer between these bounds, which leave room to add two."""

    least: int = -(1 << 61)
    most: int = 1 << 61


NUMBER, TIME, SMALL = Whole(), (Whole(0), None), (Whole(-(1 << 31), (1 << 31) - 1), None)
TEXT, RANKS = (str, None), ([Whole(0, 1 << 31)], None)

SERVED = {
    "server": str,
    "tcp": ({"host": str, "address": str, "port": Whole(1, 65535), "public": str, "key_file": str}, None),
}
FACTS = {
    "monotonic_ns": NUMBER, "wall_ns": NUMBER, "attached_ns?": TIME, "attached_wall_ns?": TIME, "last_step_ns?": TIME,
    "step_ns?": TIME, "collectives_ns?": TIME, "start_ticks?": TIME, "pid?": SMALL, "uid?": (Whole(), None),
    "rank?": SMALL, "world_size?": SMALL, "local_rank?": SMALL, "distributed?": (bool, None),
    "step_base?": (NUMBER, None),
    "step_source?": TEXT, "step_settled?": (bool, None), "count?": TIME, "anchor?": TEXT, "agent?": TEXT, "host?": TEXT,
    "python?": TEXT, "torch?": TEXT, "torch_cuda?": TEXT, "endpoint?": TEXT, "trouble?": TEXT, "holder?": TEXT,
    "boot_id?": TEXT, "id?": TEXT, "name?": TEXT, "served?": (SERVED, None), "peers?": TEXT,
    "taps?": Each(str), "streams": Each({"slots": [str], "chunks": Whole(1, 1 << 31)}),
    "sampling?": ({"sample": (int, str), "every": Whole(1, 1 << 31)}, None),
}  # fmt: skip

REPLIES: dict[str, dict[str, Any]] = {
    wire.WELCOME: {"facts": FACTS, "role?": TEXT},
    wire.AT: {"facts": FACTS, "streams": Each(Whole(0)), "log": Whole(0)},
    wire.ROWS: {"first": Whole(1), "rows": Whole(1)},
    wire.LOG: {"first": Whole(0)},
    wire.END: {"rows": Whole(0)},
    wire.SETTINGS: {"settings": Each((int, float, str, bool, None))},
    wire.FRAMES: {
        "threads": [
            {
                "ident": NUMBER, "native_id": (NUMBER, None), "name": TEXT, "is_main": bool, "cut": Whole(0),
                "frames": [list],
            }
        ]
    },
    wire.SERVING: {
        "protocol": Whole(), "version": str, "role": str,
        "agents": [{"id": str, "rank": SMALL, "pid": SMALL, "host": TEXT}],
    },
    wire.RESULT: {"before": [str], "after": [str], "count": Whole(0)},
    wire.ANSWERED: {"bytes": Whole(0), "failure?": ({"code": str, "message": str, "hint": str}, None)},
    wire.KNOWN: {"ranks": [({"endpoint": str, "served": SERVED, "host?": TEXT, "pid?": SMALL, "id": str}, None)]},
    wire.ENTRIES: {"texts": [str], "groups": Each(([Whole()], None))},
    wire.ARMED: {"count": Whole(0), "base": NUMBER, "step_ns?": TIME, "waiting?": (int, float, None), "holder?": TEXT},
    wire.READY: {},
    wire.OUT: {"stream": str, "text": str},
    wire.DONE: {
        "ok": bool, "echo?": TEXT, "error?": TEXT, "traceback?": TEXT, "cancelled?": (bool, None),
        "count?": (NUMBER, None), "held_ns?": TIME, "changed?": ([str], None), "dropped_bytes?": TIME,
    },
    wire.DETACHED: {"left": [str]},
    wire.ERROR: {"code": str, "message": str},
}  # fmt: skip
# of the log, which is append-only: fields that do not fit are left out, the rest is useful
RECORDS: dict[int, dict[str, Any]] = {
    streams.LOG_MODULE: {
        "name": TEXT, "type": TEXT, "parent": (NUMBER, None), "root": (NUMBER, None), "device": TEXT, "model": TEXT,
        "wraps": NUMBER, "spread": (bool, None),
    },
    streams.LOG_OPTIMIZER: {"name": TEXT, "type": TEXT, "device": TEXT},
    streams.LOG_GROUP: {"name": TEXT, "backend": TEXT, "size": SMALL, "rank": SMALL, "ranks": RANKS},
    streams.LOG_THREAD: {"native_id": (NUMBER, None), "name": TEXT, "is_main": (bool, None)},
    streams.LOG_EVAL: {"by": TEXT, "code": TEXT, "where": TEXT, "ranks": RANKS},
    streams.LOG_EVAL_DONE: {"ok": (bool, None), "error": TEXT, "changed": ([str], None)},
    streams.LOG_LOADER: {
        "name": TEXT, "num_workers": SMALL, "pin_memory": (bool, None), "prefetch_factor": SMALL, "batch_size": SMALL,
    },
    streams.LOG_DEVICE: {"index": SMALL, "uuid": TEXT, "name": TEXT},
}  # fmt: skip
_PAYLOAD = {wire.ROWS: 2, wire.LOG: 1, wire.TEXT: 1}  # frames behind the header


Check = Callable[[Any, str], str]  # (a value, its name) -> what is wrong with it, "" for nothing


def check(header: dict[str, Any], payload: int) -> None:
    """Raises WireError, naming the field.  payload: how many frames come behind the header."""
    kind = header["kind"]
    wrong = _CHECKS[kind](header, kind) if kind in _CHECKS else ""
    if not wrong and "facts" in header and kind in (wire.WELCOME, wire.AT):
        wrong = _wrong_slots(header["facts"]["streams"])
    if not wrong and kind == wire.FRAMES:
        frames = (frame for thread in header["threads"] for frame in thread["frames"])
        odd = next((frame for frame in frames if [*map(type, frame)] != [str, int, str]), None)
        wrong = "" if odd is None else f"frames.threads: a frame is {str(odd)[:60]}"
    if not wrong and payload < _PAYLOAD.get(kind, 0):
        wrong = f"{kind} without its payload"
    if wrong:
        raise wire.WireError(wrong)


def fitting(record: Mapping[str, Any], kind: int) -> dict[str, Any]:
    """The fields of a log record that have their shape, and those that are unknown here."""
    checks = _FIELDS[kind]
    return {name: value for name, value in record.items() if name not in checks or not checks[name](value, name)}


def _wrong_slots(layouts: Mapping[str, Any]) -> str:
    """A stream may have additional slots; all known ones must be there."""
    for name, described in layouts.items():
        slots = described["slots"]
        if tuple(slots) == STREAMS.get(name):
            continue
        missing = {*STREAMS.get(name, ("seq",))} - {*slots}
        if missing or slots[-1] != "seq" or len(slots) > 64:
            return f"stream {name[:40]!r} without {', '.join(sorted(missing)) or 'an end'}"
    return ""


# Shapes are compiled to functions once: a query over 512 ranks checks 60,000 values.


def _compiled(shape: Any) -> Check:
    if isinstance(shape, dict):
        return _object(shape)
    if isinstance(shape, (list, Each)):
        return _many(shape)
    alternatives = shape if isinstance(shape, tuple) else (shape,)
    types = {type(None) if each is None else each for each in alternatives if isinstance(each, type) or each is None}
    wholes = [each for each in alternatives if isinstance(each, Whole)]
    least, most = (wholes[0].least, wholes[0].most) if wholes else (1, 0)
    others = [_compiled(each) for each in alternatives if isinstance(each, (dict, list, Each))]

    def check_value(value: Any, name: str) -> str:
        if type(value) in types or (type(value) is int and least <= value <= most):
            return ""
        return "" if any(not other(value, name) for other in others) else f"{name} is {str(value)[:60]!r}"

    return check_value


def _object(shape: Mapping[str, Any]) -> Check:
    fields = [(name.rstrip("?"), name.endswith("?"), _compiled(inner)) for name, inner in shape.items()]

    def check_value(value: Any, name: str) -> str:
        if type(value) is not dict:
            return f"{name} is {str(value)[:60]!r}"
        for field, optional, inner in fields:
            if field in value:
                if wrong := inner(value[field], field):
                    return f"{name}.{wrong}"
            elif not optional:
                return f"{name} without {field}"
        return ""

    return check_value


def _many(shape: Any) -> Check:
    inner, kind = (_compiled(shape.shape), dict) if isinstance(shape, Each) else (_compiled(shape[0]), list)

    def check_value(value: Any, name: str) -> str:
        if type(value) is not kind:
            return f"{name} is {str(value)[:60]!r}"
        items: Iterable[Any] = value.values() if isinstance(value, dict) else value
        for each in items:
            if wrong := inner(each, name):
                return wrong
        return ""

    return check_value


_CHECKS = {kind: _compiled(shape) for kind, shape in REPLIES.items()}
_FIELDS = {kind: {name: _compiled(inner) for name, inner in shape.items()} for kind, shape in RECORDS.items()}


class Expected:
    """What one scan or log may still bring: messages in order and within what was asked for, none of them empty, so an
    agent that sends forever is detected.  take() and end() raise WireError for anything else."""

    def __init__(self, asked: Mapping[str, Any], facts: Facts) -> None:
        self._next, self._last = int(asked["first"]), int(asked["last"])
        self._taken = 0  # rows, or bytes
        self._row_bytes = 8 * len(facts.slots(asked["stream"])) if "stream" in asked else 0

    def take(self, header: Mapping[str, Any], payload: Sequence[Any]) -> None:
        """Check a message before the last."""
        size, left = len(payload[-1]), self._last - self._next - self._taken
        if header["kind"] != wire.ROWS:
            if not 0 < size <= left:
                raise wire.WireError(f"{size} bytes of a log of which {left} were due")
            self._taken += size
            return
        first, rows = header["first"], header["rows"]
        if size != rows * self._row_bytes:
            raise wire.WireError(f"{rows} rows of {self._row_bytes} bytes in {size}")
        if not self._next <= first <= first + rows - 1 <= self._last:
            raise wire.WireError(f"rows {first} to {first + rows - 1} where {self._next} to {self._last} were due")
        self._next = first + rows
        self._taken += rows

    def end(self, said: int) -> None:
        """Check the last message, with the number of rows or bytes that the agent says it has sent."""
        if said != self._taken:
            raise wire.WireError(f"{self._taken} rows or bytes came, of {said}")
