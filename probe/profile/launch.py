"""Profiles of several ranks at once: a process for each, here or beside the rank's server.

Called by probe.insight.  Invariant: whatever ends the command, no profiler stays.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from .. import protocol as wire
from ..client.agent_requests import Unreached
from ..client.client import AgentLink, Call, Client
from ..errors import CODES, Interrupted, ProbeError

_PROFILER = "import sys; sys.path[:] = {!r}; from probe.profile.profiler import main; main()"
_LOOK_S = 0.1
_WANTED_S = 1.0  # how often a server is told that a profile is still wanted
_ENDS_S = 15.0  # after its time
_PATIENCE_S = 30.0  # at least, with a rank that is to end steps


@dataclass(frozen=True)
class RankProfile:
    """A profile of one rank that was taken.  looks: how often its threads were looked at; samples: rows of
    python.profile; not_read: those without a stack; start_ns, end_ns: on the monotonic clock of its host; busy_s: time
    that it took the profiler.

    Example: `sum(each.not_read for each in job.profile(5))`
    """

    rank: int
    looks: int
    samples: int
    not_read: int
    start_ns: int
    end_ns: int
    busy_s: float


_FIGURES = [field.name for field in fields(RankProfile) if field.name != "rank"]


@dataclass(frozen=True)
class Order:
    """seconds: at most; steps: so many whole ones, 0 for any number; rate: looks per second; by: who wants it."""

    seconds: float
    steps: int
    rate: float
    by: str


def profile(client: Client, links: Sequence[AgentLink], order: Order) -> tuple[list[RankProfile], list[Unreached]]:
    """The profiles taken, and the ranks without one.  Raises what kept the first from it, if there are none, and
    Interrupted."""
    unreached, taken, errors = list[Unreached](), list[RankProfile](), list[ProbeError]()
    for link, said in _Profiling(client, links, order).results().items():
        if "error" in said:
            errors.append(_error(said["error"]))
            unreached.append(Unreached(link.rank, link.pid, link.host, str(errors[-1]).rstrip(".")))
        else:
            taken.append(RankProfile(link.rank, **{name: said[name] for name in _FIGURES}))
    if not taken:
        raise errors[0]
    return taken, unreached


class _Profiling:
    """results() once."""

    def __init__(self, client: Client, links: Sequence[AgentLink], order: Order) -> None:
        self._client, self._order = client, order
        self._here = [link for link in links if link.here or not link.is_served]
        self._served = [link for link in links if link not in self._here]
        self._processes: dict[AgentLink, subprocess.Popen[str]] = {}
        self._calls: list[Call] = []

    def results(self) -> dict[AgentLink, dict[str, Any]]:
        """What each profiler says.  Raises Interrupted."""
        try:
            for link in self._here:
                self._processes[link] = _started(link, self._order)
            request = {**vars(self._order), "patience_s": _PATIENCE_S}
            self._calls = [self._client.send(link, wire.SAMPLE, **request) for link in self._served]
            self._wait(time.monotonic() + self._order.seconds + _ENDS_S)
        finally:
            self._client.cancel(self._calls)
            self._client.forget(self._calls)
            for process in self._processes.values():
                assert process.stdin is not None
                with contextlib.suppress(OSError):
                    process.stdin.close()  # which ends it
            told = {link: _said(process) for link, process in self._processes.items()}
        return told | {call.link: _answer(call) for call in self._calls}

    def _wait(self, end: float) -> None:
        """Until all are over."""
        wanted = time.monotonic()
        while (now := time.monotonic()) < end:
            running = [call for call in self._calls if not call.over]
            if not running and all(each.poll() is not None for each in self._processes.values()):
                return
            if now >= wanted:
                wanted = now + _WANTED_S
                for call in running:
                    self._client.want(call, 0)
            if running:
                self._client.wait(running, now + _LOOK_S)
            else:
                time.sleep(_LOOK_S)
            if self._client.interrupted:
                raise Interrupted("Interrupted.")


def _answer(call: Call) -> dict[str, Any]:
    """As a profiler says it."""
    if call.answer is not None:
        return dict(call.answer["told"])
    error = call.error or call.link.silence()
    return {"error": {"code": error.code, "message": error.message, "hint": error.hint}}


def _started(link: AgentLink, order: Order) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _PROFILER.format(sys.path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        stderr=None if os.environ.get("PROBE_DEBUG") == "1" else subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdin is not None
    request = {**vars(order), "pid": link.pid if link.here else 0, "url": link.address.url, "patience_s": _PATIENCE_S}
    with contextlib.suppress(OSError):  # it has ended; its status will tell
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
    return process


def _said(process: subprocess.Popen[str]) -> dict[str, Any]:
    try:
        process.wait(_ENDS_S)
    except subprocess.TimeoutExpired:
        process.kill()
    assert process.stdout is not None
    with process, process.stdout as out:
        text = out.read()
    try:
        return dict(json.loads(text))
    except ValueError:
        return {"error": {"code": "agent", "message": "The profiler has ended without a word.", "hint": ""}}


def _error(said: Mapping[str, str]) -> ProbeError:
    kind = CODES[said["code"]][0] if said["code"] in CODES else ProbeError
    return kind(said["message"], said["hint"], said["code"])
