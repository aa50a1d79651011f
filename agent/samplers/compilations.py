"""Reads what torch.compile has compiled, from the records that dynamo itself keeps of its last 64 compilations.

Called by agent/samplers/sampler_loop.py, on the agent's thread.  Invariant: nothing of dynamo is called, imported,
wrapped or kept: its records are read.  A job that compiles more than 64 functions within a second loses the first.
"""

from __future__ import annotations

import sys
from time import perf_counter_ns, time_ns
from typing import Any

from ...streams import LOG_COMPILATION
from ..storage.log import Log
from ..storage.rows import Stream

_MOST = 10_000  # records of one attach
_CHARACTERS = 300  # of a reason, and of a file's name
_Key = tuple[Any, ...]


class Compilations:
    """sample() on the agent's thread, once a second.  The first sample has what was compiled before the attach."""

    name = "compile"

    def __init__(self, samples: Stream, log: Log, pynvml_path: str | None) -> None:
        self._log, self._last, self._count = log, (), 0

    @property
    def state(self) -> str:
        return "on" if self._count < _MOST else f"off: {_MOST:,} compilations have been recorded"

    def sample(self) -> None:
        records = getattr(sys.modules.get("torch._dynamo.utils"), "_compilation_metrics", ())
        new = list[Any]()
        for record in reversed(records.copy() if records else ()):
            if _key(record) == self._last:
                break
            new.append(record)
        if new:
            self._last = _key(new[0])
        ahead_ns = time_ns() - perf_counter_ns()
        for record in reversed(new):
            known = _known(record, ahead_ns)
            if known and self._count < _MOST:
                self._count += 1
                self._log.put(LOG_COMPILATION, self._log.next_id(), known)

    def close(self) -> None:
        self._last = ()

    def forget(self) -> None:
        self._last = ()


def _key(record: Any) -> _Key:
    return tuple(getattr(record, name, None) for name in ("compile_id", "is_forward", "start_time_us", "start_time"))


def _known(record: Any, ahead_ns: int) -> dict[str, Any]:
    """Its fields, of any version of torch; {} without its times.  ahead_ns: by which the wall clock is ahead."""
    begin, took = getattr(record, "start_time_us", None), getattr(record, "duration_us", None)
    if begin is None or took is None:  # before torch 2.6
        begin_s, took_s = getattr(record, "start_time", None), getattr(record, "entire_frame_compile_time_s", None)
        if begin_s is None or took_s is None:
            return {}
        begin, took = 1e6 * begin_s, 1e6 * took_s
    reason = getattr(record, "recompile_reason", None)
    return {
        "start_ns": 1000 * int(begin) - ahead_ns,
        "duration_ns": 1000 * int(took),
        "function": _text(getattr(record, "co_name", None)),
        "file": _text(getattr(record, "co_filename", None)),
        "line": getattr(record, "co_firstlineno", None),
        "reason": _text(reason),
        "recompile": bool(reason) or _is_again(str(getattr(record, "compile_id", None))),
        "backward": getattr(record, "is_forward", None) is False,
        "failed": getattr(record, "fail_type", None) is not None,
    }


def _text(value: Any) -> str | None:
    """One line of it, without the blanks that dynamo aligns columns with."""
    return " ".join(str(value).partition("\n")[0].split())[:_CHARACTERS] if value else None


def _is_again(compile_id: str) -> bool | None:
    """Whether it is of a function compiled before: 3/0 is the first compilation of function 3, 3/1 the second; 3/1_1
    is that of its second attempt."""
    number = compile_id.rpartition("/")[2].partition("_")[0].strip("]")
    return int(number) > 0 if "/" in compile_id and number.isdecimal() else None
