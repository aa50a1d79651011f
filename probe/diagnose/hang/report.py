"""The report on a job that may be stuck, and its words: what ranks do, what is in flight, where stacks are.

Used by probe.diagnose.verdict and the rules on evidence.  Invariant: pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ...snapshot.flight_recorder import Pending
from ...snapshot.stacks import Frame, folded
from ...text import grouped, short, span, title
from .evidence import Evidence, RankEvidence

_PLURAL = {"is": "are", "has": "have", "does": "do", "waits": "wait", "it": "they", "its": "their"}
_FRAMES, _WAITS = 8, 4  # of a stack; in flight: what a report has room for
_PLUMBING = ("torch/", "threading.py", "multiprocessing/", "queue.py", "selectors.py", "socket.py", "contextlib.py")


@dataclass(frozen=True)
class Report:
    """Why a job is stuck, or that it is not: what `Connection.hang` returns.

    code: stable, one of docs/how-to/hang.md; hung: whether the job is stuck; ranks: those the verdict names;
    why, stacks, next: lines of evidence, of the training threads' stacks (equal ones folded), of commands to run next.

    Example: `report = connection.hang(); print(report.verdict) if report.hung else None`
    """

    code: str
    verdict: str
    hung: bool
    ranks: tuple[int, ...] = ()
    why: list[str] = field(default_factory=list)
    stacks: list[str] = field(default_factory=list)
    next: list[str] = field(default_factory=list)


def does(one: RankEvidence) -> str:
    """What a rank does instead, in words."""
    if one.condition == "answers":
        if not one.threads:
            return "gave no stacks in time"
        if one.thread is None:
            return "has no main thread in Python"
        where = place(one.thread.frames)
        if not where:
            return "is not in Python code"
        if one.is_compiling:
            return f"is compiling in {where}"
        if one.is_busy or one.moved:
            how = "running"
        elif one.moves_bytes:
            how = "reading or writing"
        elif one.children_work:
            how = "waiting for child processes"
        elif one.may_compute:
            how = "working now and then"
        else:
            how = "waiting" if one.is_idle else "blocked"
        return f"is {how} in {where}"
    holds = " and is computing: it may hold the GIL in C" if one.is_busy else " and is asleep"
    how = f" while {one.gil}" if one.gil else holds
    how = "" if one.running is None else how  # on another host nobody can see
    where = f", in {place(one.thread.frames)}" if one.thread is not None and one.thread.frames else ""
    told = {
        "silent": f"does not answer{how}{where}",
        "unattached": f"is not attached{how}",
        "stopped": f"is stopped{where}",
        "ended": "is gone",
    }
    return told.get(one.condition, "is not covered by this endpoint")


def said(ranks: Sequence[int], told: str, between: str = " ") -> str:
    """What does() says of one rank, said of these: `ranks 1-3 are blocked in main (train.py:7)`."""
    return f"{title(ranks)}{between}{plural(told) if len(ranks) > 1 else told}"


def plural(told: str) -> str:
    """What does() says of one rank, said of several: `are blocked in main (train.py:7)`."""
    verbs, between, rest = told.partition(" in ")
    return " ".join(_PLURAL.get(word, word) for word in verbs.split()) + between + rest


def together(ranks: Iterable[RankEvidence]) -> list[str]:
    """What ranks do, one line for all that do the same."""
    return [said(those, told) for told, those in grouped((does(each), each.rank) for each in ranks).items()]


def place(frames: Sequence[Frame]) -> str:
    """The innermost frame of the user's own code, and the function that it has come to."""
    own = next((frame for frame in frames if not short(frame.file).startswith(_PLUMBING)), None)
    if own is None or own == frames[0]:
        return str(frames[0]) if frames else ""
    return f"{own}, in {frames[0].function}"


def called(one: Pending) -> str:
    if one.number < 0:  # between two ranks
        return f"{one.kind} in group {one.group}"
    return f"{one.kind} number {one.number} of group {one.group}"


def wait_lines(evidence: Evidence) -> list[str]:
    """What has been in flight for longest."""
    lines = []
    for each in evidence.waits[:_WAITS]:
        age = seconds(max(0.0, (evidence.now_ns - each.created_ns) / 1e9))
        line = f"{called(each)} has been in flight on {title(each.waiting)} for {age}"
        line += f"; missing: {span(each.missing)}" if each.missing else ""
        lines.append(line + (f"; unknown: {span(each.unknown)}" if each.unknown else ""))
    return lines


def left_alone_lines(evidence: Evidence) -> list[str]:
    """The ranks whose collectives are not recorded because their devices are left alone."""
    same = grouped((each.left_alone, each.rank) for each in evidence.ranks if each.left_alone)
    return [f"the collectives of {title(ranks)} are not known: {why}" for why, ranks in same.items()]


def rank_lines(evidence: Evidence) -> list[str]:
    """What ranks do and how far they are, one line for all of which both are the same."""
    lines = []
    for (told, _), those in grouped(((does(each), each.steps), each) for each in evidence.ranks).items():
        line = said([each.rank for each in those], told)
        if len(those) == 1 and those[0].pid:
            host = f"{those[0].host}, " * bool(those[0].host)
            line = f"{title([those[0].rank])} ({host}pid {those[0].pid}) {told}"
        lines.append(line + _progress(those))
    return lines


def _progress(ranks: Sequence[RankEvidence]) -> str:
    """`, step 20 ended 3.0 s ago (usually every 25 ms)`; of several ranks from the least to the most."""
    steps = "" if ranks[0].steps is None else f", step {ranks[0].steps}"
    ages = [each.step_age_s for each in ranks if each.step_age_s is not None]
    usual = [each.usual_step_s for each in ranks if each.usual_step_s is not None]
    ago = f" ended {_range(ages)} ago" if ages else ""
    return f"{steps}{ago}{f' (usually every {_range(usual)})' if usual else ''}"


def _range(values: Sequence[float]) -> str:
    low, high = seconds(min(values)), seconds(max(values))
    return low if low == high else f"{low} to {high}"


def stack_lines(evidence: Evidence) -> list[str]:
    """The training threads, innermost frame first, ranks with the same stack folded."""
    lines: list[str] = []
    for one in folded({each.rank: [each.thread] for each in evidence.ranks if each.thread is not None}):
        frames = one.thread.frames
        lines += [f"{title(one.ranks)}:", *(f"  {frame}" for frame in frames[:_FRAMES])]
        more = len(frames) + one.thread.cut - _FRAMES
        lines += [f"  … {more} more"] if more > 0 else []
    return lines


def seconds(value: float) -> str:
    return f"{value * 1e3:.0f} ms" if value < 1 else f"{value:.1f} s" if value < 120 else f"{value / 60:.0f} min"
