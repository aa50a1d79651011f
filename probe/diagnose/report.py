"""What a report on a hang consists of, and the words it uses: what ranks do, and what is in flight.

Used by probe.diagnose.hang, which has the verdicts.  Invariant: pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..snapshot.flight_recorder import Pending
from ..snapshot.stacks import Frame, folded, short
from ..text import span, title
from .evidence import Evidence, OfRank

BUSY = 0.25  # share of a core from which a thread counts as computing
_PLURAL = {
    "stands": "stand", "runs": "run", "is": "are", "has": "have", "does": "do", "computes:": "compute:", "it": "they",
    "sleeps": "sleep",
}  # fmt: skip
_FRAMES, _LOOKS = 8, 4  # of a stack; ranks to look at from outside
_PLUMBING = ("torch/", "threading.py", "multiprocessing/", "queue.py", "selectors.py", "socket.py", "contextlib.py")


@dataclass(frozen=True)
class Report:
    """code: stable; ranks: those it names; hung: whether the job does not go on by itself; why, stacks, next: lines."""

    code: str
    verdict: str
    hung: bool
    ranks: tuple[int, ...] = ()
    why: list[str] = field(default_factory=list)
    stacks: list[str] = field(default_factory=list)  # of the main threads, those that are the same folded
    next: list[str] = field(default_factory=list)


def does(one: OfRank) -> str:
    """What a rank does instead, in words."""
    if one.condition != "answers":
        busy = (one.running or 0) >= BUSY
        how = f" while {one.gil}" if one.gil else " and computes: it may hold the GIL in C" if busy else " and sleeps"
        how = "" if one.running is None else how  # on another host nobody can see
        told = {
            "silent": f"does not answer{how}",
            "unattached": f"is not attached{how}",
            "stopped": "is stopped",
            "ended": "is gone",
        }
        return told.get(one.condition, "is not looked at here")
    if one.main is None:
        return "has no main thread in Python"
    where = place(one.main.frames)
    running = (one.running or 0) >= BUSY
    return f"{'runs' if running else 'stands'} in {where}" if where else "stands in no Python code"


def plural(told: str) -> str:
    """What does() says of one rank, said of several: `stand in main (train.py:7)`."""
    verbs, between, rest = told.partition(" in ")
    return " ".join(_PLURAL.get(word, word) for word in verbs.split()) + between + rest


def together(ranks: Sequence[OfRank]) -> list[str]:
    """What ranks do, in a line those that do the same: `rank 0 runs in …`, `ranks 1-3 stand in …`."""
    same: dict[str, list[int]] = {}
    for each in ranks:
        same.setdefault(does(each), []).append(each.rank)
    return [f"{title(those)} {plural(told) if len(those) > 1 else told}" for told, those in same.items()]


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
    if one.number < 0:  # between two ranks
        return f"{one.kind} in group {one.group}"
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
    """What ranks do and how far they are, in a line those of which it is the same."""
    same: dict[tuple[str, int | None], list[OfRank]] = {}
    for each in evidence.ranks:
        same.setdefault((does(each), each.steps), []).append(each)
    return [
        f"{_who(those)} {plural(told) if len(those) > 1 else told}{_far(those)}" for (told, _), those in same.items()
    ]


def _who(ranks: Sequence[OfRank]) -> str:
    if len(ranks) > 1 or not ranks[0].pid:
        return title([each.rank for each in ranks])
    host = f"{ranks[0].host}, " * bool(ranks[0].host)
    return f"{title([ranks[0].rank])} ({host}pid {ranks[0].pid})"


def _far(ranks: Sequence[OfRank]) -> str:
    """`, step 20, the last ended 3.0 s ago (usually every 25 ms)`; of several ranks from the least to the most."""
    steps = "" if ranks[0].steps is None else f", step {ranks[0].steps}"
    ages = [each.step_age_s for each in ranks if each.step_age_s is not None]
    usual = [each.usual_step_s for each in ranks if each.usual_step_s is not None]
    ago = f", the last ended {_range(ages)} ago" if ages else ""
    return f"{steps}{ago}{f' (usually every {_range(usual)})' if usual else ''}"


def _range(values: Sequence[float]) -> str:
    low, high = seconds(min(values)), seconds(max(values))
    return low if low == high else f"{low} to {high}"


def stacks_told(evidence: Evidence) -> list[str]:
    """The main threads, innermost frame first, ranks with the same one folded."""
    told: list[str] = []
    for one in folded({each.rank: [each.main] for each in evidence.ranks if each.main is not None}):
        frames = one.thread.frames
        told += [f"{title(one.ranks)}:", *(f"  {frame}" for frame in frames[:_FRAMES])]
        more = len(frames) + one.thread.cut - _FRAMES
        told += [f"  … {more} more"] if more > 0 else []
    return told


def next_of(evidence: Evidence, report: Report) -> list[str]:
    if not report.hung:
        return []
    silent = [
        each for each in evidence.ranks if each.rank in report.ranks and each.condition in ("silent", "unattached")
    ]
    looks = [
        f"py-spy dump --pid {each.pid}{f' (on {each.host})' * bool(each.host)}" for each in silent[:_LOOKS] if each.pid
    ]
    return [*looks, f"probe {evidence.endpoint} stack"]


def seconds(value: float) -> str:
    return f"{value * 1e3:.0f} ms" if value < 1 else f"{value:.1f} s" if value < 120 else f"{value / 60:.0f} min"
