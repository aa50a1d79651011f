"""The wire: every message kind between a reader and an agent, and nothing about them anywhere else.

A request is [request id, JSON header, payload ...], a reply the same with the request's id.  At an agent's own socket
(AF_UNIX) Unpacker and packed() frame them.  The job's server takes them over ZeroMQ as [request id, agent id, JSON
header, payload ...] and passes them on to that agent; a request without an agent id is for the server itself.
Invariant: every request ends in exactly one terminal reply, its kind's own or `error`, and nothing is ever unpickled.
Stdlib only, and it imports nothing of probe: the agent carries this file.

    request   header                                            terminal reply
    hello     protocol, version, by, role                       welcome: facts, role (what this client may do)
    snapshot  -                                                 at: streams (last seq of each), log (bytes), facts
    scan      stream, first, last, credit, patch; template      rows* then end: rows
              (since, optional: [slot, value]: from about one row before the first that has at least this value)
              (template: an Arrow record-batch header; patch: [[offset, multiplier], ...] of its integers; without a
              template the job's server answers, in whole Arrow messages with a column for each slot)
    log       first, last (byte offsets), credit                log* then end: rows (bytes)
    next      credit (more for a running scan, log or query)    -
    cancel    of (a request id: scan, log, arm or query)        - (the cancelled request ends in its terminal reply)
    memory    -                                                 handed: layout (agent/inspect/interpreter_layout.py),
              (at an agent's own socket only)                   threads (ident, native_id, name, is_main); with it
                                                                comes a descriptor that reads the process's memory
    profile   by                                                profiling: layout (agent/inspect/interpreter_layout.py),
                                                                next (of each stream of profiles, the number of its next
                                                                row), count
    deposit   names; rows of the stream of nodes, of samples    stored: ids (of the names, 0: too many), count
              (numbered on from `next`; of the client that      (boundaries since the attach)
              profiles, which ends with its connection)
    trace     function, since ("": of nothing), seconds (it     traced: traces (of each: id, function, file, line,
              ends then, or 10 s after it was last asked for);  calls, start_ns, end_ns (0: it goes on), why_off), names
              or ids (null: all), to ("stop", "keep" for good;  (of the job's functions, if none is called so)
              null: only tell)
    tensors   wait_s (for a boundary; then it looks at once),   listed: storages (LISTED_COLUMNS, largest first), places
              compare (with the look before; both optional)     (each [the place that it is in or -1, the text of the
                                                                edge]), left_storages, left_bytes (of each device: not
                                                                told one by one), unseen (UNSEEN), walked (objects),
                                                                malloc (bytes that the C library has given out),
                                                                allocated (bytes of each device that the allocator has
                                                                given out), at_boundary, count, held_ns (of each piece)
    capture   id (as armed)                                     captured (once its steps are over; cancelled, at the
                                                                next boundary): start_ns, end_ns, wall_offset_ns, count
                                                                (at the start), steps, why ("" unless it ended early),
                                                                begin_ns, stop_ns, export_ns (what took the job), bytes
                                                                (of its trace), grown_bytes, threads, cuda, cpu, next
    events    id, first, last (byte offsets of the trace),      events* then end: rows (bytes)
              credit
    record    id (the client asks again until it is over, or    recorded: over, why ("" unless it ended early), fault
              it ends), order (steps or 0, seconds at most,     (there is none, in words), start_ns (0: it waits for a
              entries kept of each device, stacks: begin a      boundary), end_ns, count (at the start), steps, held_ns
              history of the allocators; or null), stop         (what its end took)
    history   -                                                 past: packed (the last one, or ""; base64 of what
                                                                agent/capture/allocator_history.py packs),
                                                                wall_offset_ns
    keep      id, names, last (the capture is over); rows of    stored: as above
              operators, of kernels (numbered on from `next`);
              with the first the trace goes
    flight    -                                                 entries: texts (torch's Flight Recorders as JSON, []
                                                                without one), why_not, groups (name: ranks)
    peers     -                                                 known: ranks (each rank's record of its address:
                                                                endpoint, served, host, pid, id; or null)
    serve     served (Agent.adopt)                              end
    align     base, source (job step of count 0)                end
    set       settings: sample ("auto" or N), budget_pct,       settings: settings (these, every, cost_ns)
              backward, for_steps; others stay as they are
    arm       by, ranks, where, timeout, write, filename,       armed: count, base, step_ns, waiting (s), holder
              frame ("" or a function or number), names (a
              pattern: tell names, run nothing; or null),
              capture (id, steps, shapes: begin one, run
              nothing; or null); code
    go        of, count (run at this boundary; -1: the next),   - (out* and wants* then done end the arm request; before
              order (a text: all ranks run the snippets of      them, if a boundary was named, ready: the training
              one boundary by it)                               waits there, at most 5 s from the last stay)
    stay      of (keep waiting, a run or a pass will follow;    -
              or of a capture: wanted still)
    run       of (which is ready)                               -
    pass      of, number, why_not ("": that operation begins),  -
              last (the snippet ends after the call of its own
              that the operation is a part of)
    detach    -                                                 detached: left (what could not be removed)

    requests about an agent that the server answers, by a process without a port that reads the agent's from outside
    stacks    -                                                 frames: threads (as above, with frames: [file, line,
                                                                function], innermost first; cut: how many outer ones it
                                                                lacks; holds_gil; is_training: it ended the last step
                                                                or, if none, called a module last); load (used: tid,
                                                                cpu_s, turns; below_s, moved_bytes, sleeps, waited_s)
    sample    seconds, steps, rate, by, patience_s              sampled: told (error: code, message, hint; or looks,
              (have the rank profiled; next or cancel follow)   samples, not_read, busy_s, start_ns, end_ns)

    requests to the server itself
    several   requests: [agent id, header] of each, which      - (it passes all of them on, or none: its client may be
              have no replies                                   killed at any moment)
    agents    protocol; ids (optional: those that are needed)   serving: protocol, version, id, role, agents (of each:
                                                                id, rank, pid, host)
    query     protocol, ids, endpoint, sql,                     result (before the text), text*, then answered: bytes,
              open_steps, min_ranks, max_fetch, timeout,        failure (code, message, hint; or null); error: it is not
              explain, format, paper, pids (their namespace),   answered here, the client has to do so
              credit
    part      protocol, version, engine (DuckDB's), ids, open_  text*, then parted: steps (of each rank: whether it has
              steps, ranks (as `at` told the client, with the   any, the last completed one, how many were not sampled
              pid in its tables), completed (the job's step),   and of how many, mean_ns: of the sampled ones, of all,
              sql (or null: tell of steps), most (bytes),       error), bytes (of an Arrow stream); error: the client
              credit                                            has to fetch rows

    rows           first, rows; payload: batch header, then the rows themselves
    log, events    first; payload: the bytes
    before         as listed: the look before this one, if there was one
    out            stream "stdout" | "stderr", text
    wants          number, operation, group, ranks (that take part), peer (the other of two, if known), tag (of a send
                   or receive), inside (it is a part of a call that has to come to its end, as a backward pass), ending
                   (the snippet was cancelled here): the snippet stands in front of this operation between ranks, at
                   most 5 s from the last stay, until pass says that all ranks begin it
    ending         - (the snippet is cancelled, but in such a call, and gets 2 s to come out of it)
    result         before, after (lines for stderr), count (rows)
    text           payload: the bytes
    done           ok, ran, echo, error, traceback, cancelled, count, held_ns, changed, dropped_bytes
    error          code, message
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from typing import Any

PROTOCOL = 6
MAX_REQUEST_BYTES = 4 << 20  # the most an agent accepts in one frame: a snippet is text, a template some hundred bytes
MAX_CONTROL_BYTES = 64 << 10  # of a request before its client has said hello, or that may only read
MAX_REPLY_BYTES = 256 << 20  # the most a reader accepts: a large job's Flight Recorder has stacks
MAX_PART_BYTES = 64 << 20  # of what a host has summed up; more is as much as rows are
ROWS_A_MESSAGE = 2048  # some 100 kB
LOG_BYTES_A_MESSAGE = 256 << 10
CREDIT = 16  # messages that may travel before the reader asks for more
OUTPUT_LIMIT = 4 << 20  # bytes of output of one eval that the target keeps for a slow reader
IDLE_SECONDS = 30.0  # a stream is dropped if its reader asks for nothing this long
NO_READER = "no new reader can connect"  # so an agent's trouble begins that keeps it from answering
NO_GROUP = "off: no process group"  # state of the tap on collectives in a job that cannot have any
NO_LOADERS = "off: the process has not imported torch.utils.data"  # of the tap on loaders: there are none
UNTESTED, UNWANTED = "which was not tested yet", "which --no-devices leaves alone"
LEFT_ALONE = UNTESTED, UNWANTED  # ends of the state of a tap that is off for such a reason

HELLO, SNAPSHOT, SCAN, LOG, NEXT, CANCEL = "hello", "snapshot", "scan", "log", "next", "cancel"
ALIGN, SET, ARM, GO, STAY, RUN, PASS, DETACH = "align", "set", "arm", "go", "stay", "run", "pass", "detach"
STACKS, SAMPLE, MEMORY, FLIGHT, PEERS, SERVE = "stacks", "sample", "memory", "flight", "peers", "serve"
PROFILE, DEPOSIT, TRACE, TENSORS = "profile", "deposit", "trace", "tensors"
CAPTURE, EVENTS, KEEP = "capture", "events", "keep"
RECORD, RECORDED, HISTORY, PAST = "record", "recorded", "history", "past"
AGENTS, QUERY, SEVERAL, PART = "agents", "query", "several", "part"
WELCOME, AT, ROWS, END, SETTINGS, ERROR = "welcome", "at", "rows", "end", "settings", "error"
ARMED, READY, OUT, WANTS, ENDING = "armed", "ready", "out", "wants", "ending"
FRAMES, SAMPLED, HANDED = "frames", "sampled", "handed"
ENTRIES, KNOWN, SERVING = "entries", "known", "serving"
PROFILING, STORED, TRACED, CAPTURED = "profiling", "stored", "traced", "captured"
DONE, DETACHED, BEFORE, LISTED = "done", "detached", "before", "listed"
RESULT, TEXT, ANSWERED, PARTED = "result", "text", "answered", "parted"

# request kind -> kinds of reply, the terminal one (besides `error`) last
REPLIES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys((NEXT, CANCEL, GO, STAY, RUN, PASS, SEVERAL), ()),
    HELLO: (WELCOME,),
    SNAPSHOT: (AT,),
    SCAN: (ROWS, END),
    LOG: (LOG, END),
    STACKS: (FRAMES,),
    SAMPLE: (SAMPLED,),
    MEMORY: (HANDED,),
    PROFILE: (PROFILING,),
    DEPOSIT: (STORED,),
    TRACE: (TRACED,),
    TENSORS: (BEFORE, LISTED),
    CAPTURE: (CAPTURED,),
    EVENTS: (EVENTS, END),
    RECORD: (RECORDED,),
    HISTORY: (PAST,),
    KEEP: (STORED,),
    FLIGHT: (ENTRIES,),
    PEERS: (KNOWN,),
    SERVE: (END,),
    AGENTS: (SERVING,),
    QUERY: (RESULT, TEXT, ANSWERED),
    PART: (TEXT, PARTED),
    ALIGN: (END,),
    SET: (SETTINGS,),
    ARM: (ARMED, READY, OUT, WANTS, ENDING, DONE),
    DETACH: (DETACHED,),
}
# What a client may do, said in its hello and kept by the agent; the server says it for its clients, by their keys.
READ, CONTROL = "read", "control"
# these change something
OF_CONTROL = frozenset(
    {
        ALIGN, SET, ARM, GO, STAY, RUN, PASS, SERVE, DETACH, PROFILE, DEPOSIT, TRACE, TENSORS, CAPTURE, EVENTS, KEEP,
        SAMPLE, MEMORY, RECORD,
    }
)  # fmt: skip
# these a server answers, whatever the agent does
OF_SERVER = frozenset({STACKS, SAMPLE})

# Operations between two ranks, as `wants` names them.
SEND, RECEIVE, RECEIVE_ANY = "send", "recv", "recv_any_source"
POINT_TO_POINT = SEND, RECEIVE, RECEIVE_ANY

# What holds a tensor's storage, and what `listed` tells of each: module made or owns it, or it was made between that
# one and `until`; saved_by is the autograd function that keeps it; key the address of its memory.
PARAMETER, GRADIENT, OPTIMIZER, BUFFER = "parameter", "gradient", "optimizer", "buffer"
ACTIVATION, VARIABLE, CACHE, OTHER = "activation", "variable", "cache", "other"
LISTED_COLUMNS = "place", "kind", "module", "until", "saved_by", "shape", "dtype", "device", "bytes", "key"
# What a look could not do: there is no torch; a backward pass may have been running; this torch does not show what a
# graph holds; the time was up before all of the user's references were followed, or before the graphs were read.
UNSEEN_TORCH, UNSEEN_AUTOGRAD, UNSEEN_GRAPHS = "torch", "autograd", "graphs"
UNSEEN_WALK, UNSEEN_NODES = "walk", "nodes"

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


_HEAD = struct.Struct("<II")  # bytes in all frames, number of frames; a length of 4 bytes for each frame follows
MOST_FRAMES = 64


def packed(frames: Sequence[Any]) -> list[Any]:
    """A message for a stream socket: its lengths, then the frames themselves, which are not copied."""
    sizes = [memoryview(frame).nbytes for frame in frames]
    return [struct.pack(f"<II{len(sizes)}I", sum(sizes), len(sizes), *sizes), *frames]


class Unpacker:
    """Takes messages out of the bytes of a stream socket.  limit: the most bytes that the frames of one may have.

    What has come of an unfinished message is kept, so at most `limit` bytes and those of one read.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._buffer = bytearray()

    @property
    def unfinished(self) -> bool:
        """Whether a part of a message has come."""
        return bool(self._buffer)

    def feed(self, data: bytes) -> Iterator[list[bytes]]:
        """The messages that are complete with these bytes.  Raises WireError, after which the stream is of no use."""
        self._buffer += data
        while (message := self._next()) is not None:
            yield message

    def _next(self) -> list[bytes] | None:
        buffer = self._buffer
        if len(buffer) < _HEAD.size:
            return None
        size, count = _HEAD.unpack_from(buffer)
        if size > self.limit or not 0 < count <= MOST_FRAMES:
            raise WireError(f"a message of {count} frames with {size} bytes")
        begin = _HEAD.size + 4 * count
        if len(buffer) < begin + size:
            return None
        sizes = struct.unpack_from(f"<{count}I", buffer, _HEAD.size)
        if sum(sizes) != size:
            raise WireError(f"frames of {sum(sizes)} bytes in a message of {size}")
        frames = []
        with memoryview(buffer) as view:
            for each in sizes:
                frames.append(bytes(view[begin : begin + each]))
                begin += each
        del buffer[:begin]
        return frames
