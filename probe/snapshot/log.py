"""What serial numbers mean: the agent's append-only log, decoded as its bytes come.

Called by the fetchers, which feed it; read by the tables.  Invariant: a later record of the same kind
and id replaces an earlier one.  Stdlib only, so that it serves readers without Arrow.
"""

from __future__ import annotations

import json
from functools import lru_cache
from struct import Struct
from typing import Any

from ..client import reply_schema
from ..streams import (
    LOG_DEVICE,
    LOG_EVAL,
    LOG_EVAL_DONE,
    LOG_GROUP,
    LOG_LOADER,
    LOG_MODULE,
    LOG_OPTIMIZER,
    LOG_RECORD,
    LOG_STRING,
    LOG_THREAD,
)

_RECORD = Struct(LOG_RECORD)
START = 8  # the committed length stands before the first record

Objects = dict[int, dict[str, Any]]


class Log:
    """Dictionaries by id, one a kind of record; `end` is the offset of the next byte to feed."""

    def __init__(self) -> None:
        self.end = START
        self.renamed = 0  # how many records have given names to what rows are about
        self.strings: dict[int, str] = {}
        self.modules: Objects = {}
        self.optimizers: Objects = {}
        self.groups: Objects = {}
        self.threads: Objects = {}
        self.evals: Objects = {}
        self.evals_done: Objects = {}
        self.loaders: Objects = {}
        self.devices: Objects = {}
        self._kinds: dict[int, Objects] = {
            LOG_MODULE: self.modules,
            LOG_OPTIMIZER: self.optimizers,
            LOG_GROUP: self.groups,
            LOG_THREAD: self.threads,
            LOG_EVAL: self.evals,
            LOG_EVAL_DONE: self.evals_done,
            LOG_LOADER: self.loaders,
            LOG_DEVICE: self.devices,
        }

    def feed(self, data: bytes | memoryview) -> None:
        """Take the bytes from `end` on; a record that is cut off waits for the rest.  Unknown kinds are skipped."""
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
        if kind == LOG_STRING:
            self.strings[id] = text
        elif kind in self._kinds:
            value = _read(kind, text)
            if value is not None:
                self._kinds[kind][id] = value
                self.renamed += kind not in (LOG_EVAL, LOG_EVAL_DONE)


@lru_cache(maxsize=1 << 16)
def _read(kind: int, text: str) -> dict[str, Any] | None:
    """What a record says, without what cannot be; None if it is none.  Ranks of a job say the same: it is read once."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return reply_schema.fitting(value, kind) if isinstance(value, dict) else None
