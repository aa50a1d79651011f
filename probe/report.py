"""What a report on a hang consists of, and the words it uses: what ranks do, and what is in flight.

Used by probe.hang, which has the verdicts.  Invariant: pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .evidence import Evidence, OfRank
from .flight import Pending
from .ranks import span, title
from .stacks import Frame, short

BUSY = 0.25  # share of a core from which a thread counts as computing
_PLUMBING = ("torch/", "threading.py", "multiprocessing/", "queue.py", "selectors.py", "socket.py", "contextlib.py")


@dataclass(frozen=True)
class Report:
    """code: stable; ranks: those it names; hung: whether the job does not go on by itself; why, next: lines."""

    code: str
    verdict: str
    hung: bool
    ranks: tuple[int, ...] = ()
    why: list[str] = field(default_factory=list)
    next: list[str] = field(default_factory=list)


def does(one: OfRank) -> str:
    """What a rank does instead, in words."""
    if one.condition != "answers":
        busy = (one.running or 0) >= BUSY
        how = "and computes: it may hold the GIL in C" if busy else "and sleeps"
        told = {
            "silent": f"does not answer {how}",
            "unattached": f"is not attached {how}",
            "stopped": "is stopped",
            "ended": "is gone",
        }
        return told.get(one.condition, "is not looked at here")
    if one.main is None:
        return "has no main thread in Python"
    where = place(one.main.frames)
    running = (one.running or 0) >= BUSY
    return f"{'runs' if running else 'stands'} in {where}" if where else "stands in no Python code"


def place(frames: Sequence[Frame]) -> str:
    """The innermost frame of the user's own, and what it has called."""
    own = next((frame for frame in frames if not short(frame.file).startswith(_PLUMBING)), None)
    if not frames:
        return ""
    inner = frames[0]
    if own is None or own == inner:
        return str(inner)
    return f"{own}, in {inner.function}"


def called(one: Pending) -> str:
    return f"{one.kind} number {one.number} of group {one.group}"


def waits_told(evidence: Evidence, waits: Sequence[Pending]) -> list[str]:
    told = []
    for each in waits[:4]:
        age = seconds(max(0.0, (evidence.now_ns - each.created_ns) / 1e9))
        line = f"{called(each)} is in flight on {title(each.waiting)} for {age}"
        line += f"; not come: {span(each.missing)}" if each.missing else ""
        line += f"; not known: {span(each.unknown)}" if each.unknown else ""
        told.append(line)
    return told


def ranks_told(evidence: Evidence) -> list[str]:
    told = []
    for each in evidence.ranks:
        steps = "" if each.steps is None else f", step {each.steps}"
        age = "" if each.step_age_s is None else f", the last ended {seconds(each.step_age_s)} ago"
        usual = "" if each.usual_step_s is None else f" (usually every {seconds(each.usual_step_s)})"
        pid = f" (pid {each.pid})" if each.pid else ""
        told.append(f"rank {each.rank}{pid} {does(each)}{steps}{age}{usual}")
    return told


def next_of(evidence: Evidence, report: Report) -> list[str]:
    if not report.hung:
        return []
    silent = [
        each for each in evidence.ranks if each.rank in report.ranks and each.condition in ("silent", "unattached")
    ]
    looks = [f"py-spy dump --pid {each.pid}" for each in silent]
    return [*looks, f"probe {evidence.endpoint} stack"]


def seconds(value: float) -> str:
    return f"{value * 1e3:.0f} ms" if value < 1 else f"{value:.1f} s" if value < 120 else f"{value / 60:.0f} min"
