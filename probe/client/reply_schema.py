"""What a reply must look like to be accepted, and which rows may arrive: an agent may be broken, or another program.

Called by probe.client.client for every reply and by probe.snapshot.log for every record.  Invariant: nothing that has
passed needs its types checked again.  Stdlib only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .. import protocol as wire
from .. import streams
from ..host.facts import Facts
from ..host.facts_shape import FACTS, LAYOUT, SERVED, wrong_slots
from ..shapes import NUMBER, RANKS, SMALL, TEXT, TIME, Each, Whole, compiled

_LISTED = {
    "storages": {
        "place": [Whole(-1)], "kind": [str], "module": [TEXT], "until": [TEXT], "saved_by": [TEXT],
        "shape": [([Whole(0)], None)], "dtype": [str], "device": [str], "bytes": [Whole(0)], "key": [Whole(0, 1 << 64)],
    },
    "places": [list], "left_storages": Whole(0), "left_bytes": Each(Whole(0)), "unseen": [str], "walked": Whole(0),
    "malloc?": TIME, "allocated": Each(Whole(0)), "at_boundary": bool, "count": Whole(0), "held_ns": [Whole(0)],
}  # fmt: skip
REPLIES: dict[str, dict[str, Any]] = {
    wire.WELCOME: {"facts": FACTS, "role?": TEXT},
    wire.AT: {"facts": FACTS, "streams": Each(Whole(0)), "log": Whole(0)},
    wire.ROWS: {"first": Whole(1), "rows": Whole(1)},
    wire.LOG: {"first": Whole(0)},
    wire.END: {"rows": Whole(0)},
    wire.SETTINGS: {"settings": Each((int, float, str, bool, None))},
    wire.PROFILING: {"layout": Each((Whole(0), None)), "next": Each(Whole(1)), "count": Whole(0)},
    wire.STORED: {"ids": [Whole(0)], "count": Whole(0)},
    wire.TRACED: {
        "traces": [
            {
                "id": Whole(1), "function": str, "file": str, "line": Whole(0), "calls": Whole(0), "start_ns": Whole(0),
                "end_ns": Whole(0), "why_off": str,
            }
        ],
        "names": [str],
    },
    wire.CAPTURED: {
        "start_ns": NUMBER, "end_ns": NUMBER, "wall_offset_ns": NUMBER, "count": Whole(0), "steps": Whole(0),
        "why": str, "begin_ns": Whole(0), "stop_ns": Whole(0), "export_ns": Whole(0), "bytes": Whole(0),
        "grown_bytes": Whole(0), "threads": Whole(0), "cuda": bool, "cpu": TEXT, "next": Each(Whole(1)),
    },
    wire.EVENTS: {"first": Whole(0)},
    wire.RECORDED: {
        "over": bool, "why": str, "fault": str, "start_ns": NUMBER, "end_ns": NUMBER, "count": Whole(0),
        "steps": Whole(0), "held_ns": Whole(0),
    },
    wire.PAST: {"packed": str, "wall_offset_ns": NUMBER},
    wire.FRAMES: {
        "threads": [
            {
                "ident": NUMBER, "native_id": (NUMBER, None), "name": TEXT, "is_main": bool, "cut": Whole(0),
                "frames": [list], "is_training": bool, "holds_gil": (bool, None),
            }
        ],
        "load?": (
            {
                "used": (list, None), "below_s": (int, float), "moved_bytes": Whole(0), "sleeps?": (bool, None),
                "waited_s?": (int, float),
            },
            None,
        ),
    },
    wire.SAMPLED: {
        "told": (
            {"error": {"code": str, "message": str, "hint": str}},
            {
                "looks": Whole(0), "samples": Whole(0), "not_read": Whole(0), "busy_s": (int, float),
                "start_ns": NUMBER, "end_ns": NUMBER,
            },
        )
    },
    wire.HANDED: {
        "layout": LAYOUT,
        "threads": [{"ident": NUMBER, "native_id": (NUMBER, None), "name": TEXT, "is_main": bool}],
    },
    wire.SERVING: {
        "protocol": Whole(), "version": str, "role": str,
        "agents": [{"id": str, "rank": SMALL, "pid": SMALL, "host": TEXT}],
    },
    wire.RESULT: {"before": [str], "after": [str], "count": Whole(0)},
    wire.ANSWERED: {"bytes": Whole(0), "failure?": ({"code": str, "message": str, "hint": str}, None)},
    wire.PARTED: {
        "bytes": Whole(0),
        "steps": [
            {
                "steps": bool, "completed": (NUMBER, None), "unsampled": [Whole(0)],
                "mean_ns": ([(int, float)], None),
            }
        ],
    },
    wire.BEFORE: _LISTED,
    wire.LISTED: _LISTED,
    wire.KNOWN: {"ranks": [({"endpoint": str, "served": SERVED, "host?": TEXT, "pid?": SMALL, "id": str}, None)]},
    wire.ENTRIES: {"texts": [str], "groups": Each(([Whole()], None))},
    wire.ARMED: {"count": Whole(0), "base": NUMBER, "step_ns?": TIME, "waiting?": (int, float, None), "holder?": TEXT},
    wire.READY: {},
    wire.OUT: {"stream": str, "text": str},
    wire.WANTS: {
        "number": Whole(1), "operation": str, "group": str, "ranks": [Whole()], "peer?": SMALL,
        "tag?": (NUMBER, None), "inside": bool, "ending": bool,
    },
    wire.ENDING: {},
    wire.DONE: {
        "ok": bool, "echo?": TEXT, "error?": TEXT, "traceback?": TEXT, "cancelled?": (bool, None), "ran?": (bool, None),
        "count?": (NUMBER, None), "held_ns?": TIME, "changed?": ([str], None), "dropped_bytes?": TIME,
    },
    wire.DETACHED: {"left": [str]},
    wire.ERROR: {"code": str, "message": str},
}  # fmt: skip
# of the log, which is append-only: fields that do not fit are left out, the rest is useful
RECORDS: dict[int, dict[str, Any]] = {
    streams.LOG_MODULE: {
        "name": TEXT, "type": TEXT, "parent": (NUMBER, None), "root": (NUMBER, None), "device": TEXT, "model": TEXT,
        "within": TEXT, "wraps": NUMBER, "spread": (bool, None),
    },
    streams.LOG_OPTIMIZER: {"name": TEXT, "type": TEXT, "device": TEXT},
    streams.LOG_GROUP: {"name": TEXT, "backend": TEXT, "size": SMALL, "rank": SMALL, "ranks": RANKS},
    streams.LOG_THREAD: {"native_id": (NUMBER, None), "name": TEXT, "is_main": (bool, None)},
    streams.LOG_EVAL: {"by": TEXT, "code": TEXT, "where": TEXT, "ranks": RANKS},
    streams.LOG_EVAL_DONE: {
        "start_ns": NUMBER, "end_ns": NUMBER, "ok": (bool, None), "error": TEXT, "changed": ([str], None),
    },
    streams.LOG_LOADER: {
        "name": TEXT, "num_workers": SMALL, "pin_memory": (bool, None), "prefetch_factor": SMALL, "batch_size": SMALL,
    },
    streams.LOG_DEVICE: {"index": SMALL, "uuid": TEXT, "name": TEXT},
    streams.LOG_COMPILATION: {
        "start_ns": NUMBER, "duration_ns": Whole(0), "function": TEXT, "file": TEXT, "line": SMALL, "reason": TEXT,
        "recompile": (bool, None), "backward": bool, "failed": bool,
    },
}  # fmt: skip
_PAYLOAD = {wire.ROWS: 2, wire.LOG: 1, wire.EVENTS: 1, wire.TEXT: 1}  # frames behind the header


def check(header: dict[str, Any], payload: int) -> None:
    """Raises WireError, naming the field.  payload: how many frames come behind the header."""
    kind = header["kind"]
    wrong = _CHECKS[kind](header, kind) if kind in _CHECKS else ""
    if not wrong and "facts" in header and kind in (wire.WELCOME, wire.AT):
        wrong = wrong_slots(header["facts"]["streams"])
    if not wrong and kind == wire.FRAMES:
        frames = (frame for thread in header["threads"] for frame in thread["frames"])
        odd = next((frame for frame in frames if [*map(type, frame)] != [str, int, str]), None)
        wrong = "" if odd is None else f"frames.threads: a frame is {str(odd)[:60]}"
        used = (header.get("load") or {}).get("used")
        if used is not None and [*map(type, used)] not in ([int, float, int], [int, float, type(None)]):
            wrong = f"frames.load.used is {str(used)[:60]}"
    if not wrong and kind in (wire.BEFORE, wire.LISTED):
        wrong = _wrong_list(header)
    if not wrong and payload < _PAYLOAD.get(kind, 0):
        wrong = f"{kind} without its payload"
    if wrong:
        raise wire.WireError(wrong)


def _wrong_list(listed: Mapping[str, Any]) -> str:
    """What is wrong with the places, or with the columns: places come after those that they are in."""
    places, columns = listed["places"], listed["storages"]
    for number, place in enumerate(places):
        if [*map(type, place)] != [int, str] or not -1 <= place[0] < number:
            return f"listed.places: a place is {str(place)[:60]}"
    if len({len(column) for column in columns.values()}) > 1 or any(not at < len(places) for at in columns["place"]):
        return "listed.storages: columns of different lengths, or a place that is not there"
    return ""


def fitting(record: Mapping[str, Any], kind: int) -> dict[str, Any]:
    """The fields of a log record that have their shape, and those that are unknown here."""
    checks = _FIELDS[kind]
    return {name: value for name, value in record.items() if name not in checks or not checks[name](value, name)}


_CHECKS = {kind: compiled(shape) for kind, shape in REPLIES.items()}
_FIELDS = {kind: {name: compiled(inner) for name, inner in shape.items()} for kind, shape in RECORDS.items()}


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
