"""The wire: every message kind between a reader and an agent, and nothing about them anywhere else.

A request is [request id, JSON header, payload ...], a reply the same with the request's id; ROUTER adds and strips the
identity.  Invariant: every request ends in exactly one terminal reply, its kind's own or `error`, and nothing is ever
unpickled.  Stdlib only, and it imports nothing of probe: the agent carries this file.

    request   header                                            terminal reply
    hello     protocol, version, by                             welcome: facts, role (what this client may do)
    snapshot  -                                                 at: streams (last seq of each), log (bytes), facts
    scan      stream, first, last, credit, patch; template      rows* then end: rows
              (since, optional: [slot, value]: from about one row before the first that has at least this value)
              (template: an Arrow record-batch header; patch: [[offset, multiplier], ...] of its integers)
    log       first, last (byte offsets), credit                log* then end: rows (bytes)
    next      credit (more for a running scan or log)           -
    cancel    of (a request id: scan, log or arm)               - (the cancelled request ends in error)
    stacks    -                                                 frames: threads (as agent/inspect/frames.py has them)
    flight    -                                                 entries: texts (torch's Flight Recorders as JSON, []
                                                                without one), why_not, groups (name: ranks)
    peers     -                                                 known: ranks (each rank's record of its address:
                                                                endpoint, server_key, host, pid; or null)
    align     base, source (job step of count 0)                end
    set       settings: sample ("auto" or N), budget_pct,       settings: settings (these, every, cost_ns)
              backward; others stay as they are
    arm       code, by, ranks, where, timeout, write, filename  armed: count, base, step_ns, waiting (s), holder
    go        of, count (run at this boundary; -1: the next)    - (out* then done end the arm request; before them,
                                                                if a boundary was named, ready: the training waits
                                                                there, at most 5 s from the last stay)
    stay      of (keep waiting, a run will follow)              -
    run       of (which is ready)                               -
    detach    -                                                 detached: left (what could not be removed)

    rows           first, rows; payload: batch header, then the rows themselves
    log            first; payload: the bytes
    out            stream "stdout" | "stderr", text
    done           ok, echo, error, traceback, cancelled, count, held_ns, changed, dropped_bytes
    error          code, message
"""

import json
from typing import Any

PROTOCOL = 2
# The most an agent accepts in one frame; a snippet is text, a template some hundred bytes.
MAX_REQUEST_BYTES = 4 << 20
MAX_REPLY_BYTES = 256 << 20  # the most a reader accepts: a large job's Flight Recorder has stacks
ROWS_A_MESSAGE = 2048  # some 100 kB: the copy into zmq holds the GIL for about 20 µs
LOG_BYTES_A_MESSAGE = 256 << 10
CREDIT = 16  # messages that may travel before the reader asks for more
OUTPUT_LIMIT = 4 << 20  # bytes of output of one eval that the target keeps for a slow reader
IDLE_SECONDS = 30.0  # a stream is dropped if its reader asks for nothing this long
NO_GROUP = "off: no process group"  # state of the tap on collectives in a job that cannot have any
UNTESTED = "this was not tested on a GPU yet"  # end of the state of a tap that is off for that reason

HELLO, SNAPSHOT, SCAN, LOG, NEXT, CANCEL = "hello", "snapshot", "scan", "log", "next", "cancel"
ALIGN, SET, ARM, GO, STAY, RUN, DETACH = "align", "set", "arm", "go", "stay", "run", "detach"
STACKS, FLIGHT, PEERS = "stacks", "flight", "peers"
WELCOME, AT, ROWS, END, SETTINGS, ERROR = "welcome", "at", "rows", "end", "settings", "error"
ARMED, READY, OUT, DONE, DETACHED = "armed", "ready", "out", "done", "detached"
FRAMES, ENTRIES, KNOWN = "frames", "entries", "known"

# request kind -> kinds of reply, the terminal one (besides `error`) last
REPLIES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys((NEXT, CANCEL, GO, STAY, RUN), ()),
    HELLO: (WELCOME,),
    SNAPSHOT: (AT,),
    SCAN: (ROWS, END),
    LOG: (LOG, END),
    STACKS: (FRAMES,),
    FLIGHT: (ENTRIES,),
    PEERS: (KNOWN,),
    ALIGN: (END,),
    SET: (SETTINGS,),
    ARM: (ARMED, READY, OUT, DONE),
    DETACH: (DETACHED,),
}
# What a client may do: control at an agent's own socket file, at a port the role of its key.
READ, CONTROL = "read", "control"
OF_CONTROL = frozenset({ALIGN, SET, ARM, GO, STAY, RUN, DETACH})  # these change something, so they need control

TERMINAL = {ERROR, *(kinds[-1] for kinds in REPLIES.values() if kinds)}


class WireError(ValueError):
    """A message that violates this protocol; the text says how."""


def encode(kind: str, **fields: Any) -> bytes:
    """The JSON header frame of a message."""
    return json.dumps({"kind": kind, **fields}, separators=(",", ":")).encode()


def _integer(text: str) -> int:
    """Slots have 8 bytes; and parsing very long integers would take some versions of Python minutes."""
    if len(text) > 20 or not -(1 << 63) <= int(text) < 1 << 63:
        raise ValueError(f"{text[:24]} is too large a number")
    return int(text)


def _constant(name: str) -> float:
    raise ValueError(f"{name} is no number")


_DECODER = json.JSONDecoder(parse_int=_integer, parse_constant=_constant)


def decode(frame: bytes) -> dict[str, Any]:
    """The header of a message, a dict with a string under "kind"; its integers have 64 bits.  Raises WireError."""
    try:
        header = _DECODER.decode(frame.decode())
    except (ValueError, RecursionError) as error:
        raise WireError(f"header is not JSON: {error}") from None
    if not isinstance(header, dict) or not isinstance(header.get("kind"), str):
        raise WireError("header is not an object with a kind")
    return header
