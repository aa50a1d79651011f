"""Profiles of several ranks at once: a process for each, which ends with the command.

Called by probe.connection.  Invariant: whatever ends the command, no profiler stays.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..client.agent_link import AgentLink
from ..client.agent_requests import Unreached
from ..errors import CODES, ProbeError, SilentError

_PROFILER = "import sys; sys.path[:] = {!r}; from probe.profile.profiler import main; main()"
_LOOK_S = 0.1
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


@dataclass(frozen=True)
class Order:
    """seconds: at most; steps: so many whole ones, 0 for any number; rate: looks per second; by: who wants it."""

    seconds: float
    steps: int
    rate: float
    by: str


def profile(
    links: Sequence[AgentLink], order: Order, unwanted: Callable[[], bool]
) -> tuple[list[RankProfile], list[Unreached]]:
    """The profiles taken, and the ranks without one.  Raises what kept the first from it, if there are none."""
    here = [link for link in links if link.here]
    unreached = [
        Unreached(link.rank, link.pid, link.host, f"{link.name} is on another host: profile it there")
        for link in links if link not in here
    ]  # fmt: skip
    taken, errors = list[RankProfile](), list[ProbeError]()
    for link, said in _results(here, order, unwanted).items():
        if "error" in said:
            errors.append(_error(said["error"]))
            unreached.append(Unreached(link.rank, link.pid, link.host, str(errors[-1]).rstrip(".")))
        else:
            taken.append(RankProfile(link.rank, **said))
    if not taken:
        raise errors[0] if errors else SilentError(f"{unreached[0].why}.")
    return taken, unreached


def _results(links: Sequence[AgentLink], order: Order, unwanted: Callable[[], bool]) -> dict[AgentLink, dict[str, Any]]:
    processes: dict[AgentLink, subprocess.Popen[str]] = {}
    end = time.monotonic() + order.seconds + _ENDS_S
    try:
        for link in links:
            processes[link] = _started(link, order)
        while not unwanted() and time.monotonic() < end and any(each.poll() is None for each in processes.values()):
            time.sleep(_LOOK_S)
    finally:
        for process in processes.values():
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.close()  # which ends it
    return {link: _said(process) for link, process in processes.items()}


def _started(link: AgentLink, order: Order) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _PROFILER.format(sys.path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        stderr=None if os.environ.get("PROBE_DEBUG") == "1" else subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdin is not None
    with contextlib.suppress(OSError):  # it has ended; its status will tell
        process.stdin.write(json.dumps({**vars(order), "pid": link.pid, "patience_s": _PATIENCE_S}) + "\n")
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
