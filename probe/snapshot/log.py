"""What serial numbers mean: the agent's append-only log, decoded as its bytes arrive.

Fed by the sources, read by the tables.  Invariant: a later record replaces an earlier one of the same kind and id.
Stdlib only, for readers without Arrow.
"""

from __future__ import annotations

import json
import os
from functools import lru_cache
from struct import Struct
from typing import Any

from .. import streams
from ..client import reply_schema
from ..host.agent_memory import descriptors, read_range

_RECORD, _COMMITTED = Struct(streams.LOG_RECORD), Struct("<q")
_OF_NOTHING = (streams.LOG_EVAL, streams.LOG_EVAL_DONE, streams.LOG_COMPILATION)  # that rows of streams are about
START = 8  # of the first record; the committed length stands before it

Objects = dict[int, dict[str, Any]]


class Log:
    """Dictionaries by id, one per kind of record.  end: offset of the next byte to feed; renamed: how many records have
    named what rows are about."""

    def __init__(self) -> None:
        self.end = START
        self.renamed = 0
        self.strings: dict[int, str] = {}
        self.modules: Objects = {}
        self.optimizers: Objects = {}
        self.groups: Objects = {}
        self.threads: Objects = {}
        self.evals: Objects = {}
        self.evals_done: Objects = {}
        self.loaders: Objects = {}
        self.devices: Objects = {}
        self.compilations: Objects = {}
        self._kinds: dict[int, Objects] = {
            streams.LOG_MODULE: self.modules,
            streams.LOG_OPTIMIZER: self.optimizers,
            streams.LOG_GROUP: self.groups,
            streams.LOG_THREAD: self.threads,
            streams.LOG_EVAL: self.evals,
            streams.LOG_EVAL_DONE: self.evals_done,
            streams.LOG_LOADER: self.loaders,
            streams.LOG_DEVICE: self.devices,
            streams.LOG_COMPILATION: self.compilations,
        }

    def feed(self, data: bytes | memoryview) -> None:
        """Take the bytes from `end` on; a record that is cut off waits for its rest.  Unknown kinds are skipped."""
        offset, size = 0, len(data)
        while offset + _RECORD.size <= size:
            kind, length, id = _RECORD.unpack_from(data, offset)
            begin = offset + _RECORD.size
            after = begin + -(-length // 8) * 8
            if after > size:
                break
            self._take(kind, id, bytes(data[begin : begin + length]))
            offset = after
        self.end += offset

    def _take(self, kind: int, id: int, payload: bytes) -> None:
        text = payload.decode("utf-8", "replace")
        if kind == streams.LOG_STRING:
            self.strings[id] = text
        elif kind in self._kinds:
            value = _read(kind, text)
            if value is not None:
                self._kinds[kind][id] = value
                self.renamed += kind not in _OF_NOTHING


@lru_cache(maxsize=1 << 16)
def _read(kind: int, text: str) -> dict[str, Any] | None:
    """The valid fields of a record; None if it is malformed.  Cached, since the ranks of a job say the same."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return reply_schema.fitting(value, kind) if isinstance(value, dict) else None


def stored_log(pid: int) -> Log | None:
    """The log of the agent in this process; None without an agent."""
    return log_at(descriptors(pid).get("log", ""))


def log_at(path: str) -> Log | None:
    """The log in this memfd; None if it is gone."""
    log = Log()
    try:
        with open(path, "rb", buffering=0) as file:
            (committed,) = _COMMITTED.unpack(os.pread(file.fileno(), 8, 0))
            log.feed(read_range(file.fileno(), log.end, committed))
    except OSError:
        return None
    return log
