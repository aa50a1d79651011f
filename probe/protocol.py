"""The wire: every message kind between a reader and an agent, and nothing about them anywhere else.

A request is [request id, JSON header, payload ...], a reply the same with the request's id; ROUTER adds
and strips the identity.  Every request ends in exactly one terminal reply: its kind's own, or `error`.
Nothing is ever unpickled.  Stdlib only, no imports of ours: the agent carries this file.

    request   header                                            terminal reply
    hello     protocol, version, by                             welcome: facts
    snapshot  -                                                 at: streams (last seq of each), log (bytes), facts
    scan      stream, first, last, credit, patch; template      rows* then end: rows
              (template: an Arrow record-batch header; patch: [[offset, multiplier], ...] of its integers)
    log       first, last (byte offsets), credit                log* then end: rows (bytes)
    next      credit (more for a running scan or log)           -
    cancel    of (a request id: scan, log or arm)               - (the cancelled request ends in error)
    stacks    -                                                 frames: threads (as agent/stacks.py has them)
    flight    -                                                 entries: texts (torch's Flight Recorders as JSON, none
                                                                where there is none), why_not, groups (name: ranks)
    align     base, source (job step of count 0)                end
    set       settings: sample ("auto" or N), budget_pct,       settings: settings (those, every, cost_ns)
              backward; none is changed that is not given
    arm       code, by, ranks, where, timeout, write, filename  armed: count, step_ns, waiting (s), holder
    go        of, count (run at this boundary; -1: the next)    - (out* then done end the arm request)
    detach    -                                                 detached: left (what could not be taken out)

    rows           first, rows; payload: batch header, then the rows themselves
    log            first; payload: the bytes
    out            stream "stdout" | "stderr", text
    done           ok, echo, error, traceback, count, held_ns, changed, dropped_bytes
    error          code, message
"""

import json
from typing import Any

PROTOCOL = 1
# What an agent takes in one frame; a snippet is text, a template some hundred bytes.
MAX_REQUEST_BYTES = 4 << 20
ROWS_A_MESSAGE = 2048  # some 100 kB: the copy into zmq holds the GIL for about 20 µs
LOG_BYTES_A_MESSAGE = 256 << 10
CREDIT = 16  # messages that may travel before the reader asks for more
OUTPUT_LIMIT = 4 << 20  # bytes of output of one eval that the target keeps for a slow reader
IDLE_SECONDS = 30.0  # a stream whose reader asks for nothing this long is dropped
NO_GROUP = "off: no process group"  # state of the tap of collectives in a job that can have none

HELLO, SNAPSHOT, SCAN, LOG, NEXT, CANCEL = "hello", "snapshot", "scan", "log", "next", "cancel"
ALIGN, SET, ARM, GO, DETACH = "align", "set", "arm", "go", "detach"
STACKS, FLIGHT = "stacks", "flight"
WELCOME, AT, ROWS, END, SETTINGS, ERROR = "welcome", "at", "rows", "end", "settings", "error"
ARMED, OUT, DONE, DETACHED = "armed", "out", "done", "detached"
FRAMES, ENTRIES = "frames", "entries"

# request kind -> kinds that may answer it, the terminal ones (besides `error`) last
REPLIES: dict[str, tuple[str, ...]] = {
    HELLO: (WELCOME,),
    SNAPSHOT: (AT,),
    SCAN: (ROWS, END),
    LOG: (LOG, END),
    NEXT: (),
    CANCEL: (),
    STACKS: (FRAMES,),
    FLIGHT: (ENTRIES,),
    ALIGN: (END,),
    SET: (SETTINGS,),
    ARM: (ARMED, OUT, DONE),
    GO: (),
    DETACH: (DETACHED,),
}
TERMINAL = {WELCOME, AT, END, SETTINGS, DONE, DETACHED, FRAMES, ENTRIES, ERROR}


class WireError(ValueError):
    """A message that is not of this protocol; the text says what is wrong with it."""


def encode(kind: str, **fields: Any) -> bytes:
    """The JSON header frame of a message."""
    return json.dumps({"kind": kind, **fields}, separators=(",", ":")).encode()


def decode(frame: bytes) -> dict[str, Any]:
    """The header of a message, a dict with a string under "kind".  Raises WireError."""
    try:
        header = json.loads(frame)
    except (ValueError, RecursionError) as error:
        raise WireError(f"header is not JSON: {error}") from None
    if not isinstance(header, dict) or not isinstance(header.get("kind"), str):
        raise WireError("header is not an object with a kind")
    return header
