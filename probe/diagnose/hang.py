"""Why a job does not go on: one verdict out of the evidence, with what speaks for it and what to do next.

Called by Connection.hang.  Invariant: pure, and what cannot be known is said so; a job is called hung only when it has
been quiet for much longer than it ever is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from ..snapshot.flight_recorder import Pending, pending
from ..text import title
from .evidence import Evidence, OfRank
from .report import BUSY, Report, called, does, next_of, plural, ranks_told, seconds, stacks_told, together, waits_told

QUIET = 5  # times as long as usual
LEAST_QUIET_S = 3.0
UNKNOWN_QUIET_S = 5.0  # where nothing is known of the usual
_LOADER, _INNERMOST = "torch/utils/data/dataloader.py", 12  # frames


def judge(evidence: Evidence) -> Report:
    """The first verdict that fits, by how sure it is."""
    entries = {each.rank: each.entries for each in evidence.ranks if each.entries}
    waits = sorted([*pending(entries, evidence.groups), *evidence.pairs], key=lambda each: each.created_ns)
    evidence = _with_unseen(evidence, waits)
    for fits in (_gone, _goes_on, _stopped, _mismatched, _deadlocked, _loader, _waiting, _silent, _stands):
        report = fits(evidence, waits)
        if report is not None:
            why = [*report.why, *waits_told(evidence, waits), *ranks_told(evidence), *evidence.machines]
            stacks = stacks_told(evidence) if report.hung else []
            return replace(report, why=why, stacks=stacks, next=report.next or next_of(evidence, report))
    raise AssertionError("_stands fits always")


def _with_unseen(evidence: Evidence, waits: Sequence[Pending]) -> Evidence:
    """Ranks that are waited for and that the endpoint does not stand for."""
    known = {*(each.rank for each in evidence.ranks), *evidence.absent}
    unseen = [OfRank(rank, 0, "unseen") for rank in _waited_for(waits) if rank not in known]
    return replace(evidence, ranks=[*evidence.ranks, *unseen]) if unseen else evidence


def _gone(evidence: Evidence, waits: Sequence[Pending]) -> Report | None:
    ended = [each.rank for each in evidence.ranks if each.condition == "ended"]
    gone = tuple(sorted({*ended, *evidence.absent}))
    if not gone:
        return None
    why = [f"{title(gone)}: no such process any more"]
    return Report("gone", f"{title(gone).capitalize()} {_is(gone)} gone.", True, gone, why)


def _goes_on(evidence: Evidence, waits: Sequence[Pending]) -> Report | None:
    quiet, usual = quiet_s(evidence), usual_quiet_s(evidence)
    limit = max(LEAST_QUIET_S, QUIET * usual) if usual is not None else UNKNOWN_QUIET_S
    if quiet is None or quiet > limit:
        alive = [each for each in evidence.ranks if each.rows and each.condition == "answers"]
        if alive and len(alive) == len(evidence.ranks):
            return Report(
                "slow", "Slow, but alive: rows are recorded, no step has ended.", False,
                why=[f"{each.rows} rows in {evidence.look_s:.1f} s on rank {each.rank}" for each in alive],
            )  # fmt: skip
        return None
    about = f", usually one in {seconds(usual)}" if usual is not None else ""
    return Report("not-hung", f"Not hung: something moved {seconds(quiet)} ago{about}.", False)


def quiet_s(evidence: Evidence) -> float | None:
    """Since anything of the job's last moved: a step, a row, a collective; None where nothing is known."""
    ages = [each.step_age_s for each in evidence.ranks if each.step_age_s is not None]
    made = [entry.created_ns for each in evidence.ranks for entry in each.entries]
    ages += [(evidence.now_ns - max(made)) / 1e9] if made else []
    return max(0.0, min(ages)) if ages else None


def usual_quiet_s(evidence: Evidence) -> float | None:
    """How long it is quiet at most when all is well: between two steps, or two collectives of a rank."""
    known = [each.usual_step_s for each in evidence.ranks if each.usual_step_s is not None]
    for each in evidence.ranks:
        times = [entry.created_ns for entry in each.entries]
        gaps = sorted(later - earlier for earlier, later in pairwise(times))
        if len(gaps) >= 4:
            known.append(gaps[-2] / 1e9)  # the longest may be the start
    return max(known) if known else None


def _stopped(evidence: Evidence, waits: Sequence[Pending]) -> Report | None:
    stopped = [each for each in evidence.ranks if each.condition == "stopped"]
    if not stopped:
        return None
    ranks = tuple(each.rank for each in stopped)
    pids = " ".join(str(each.pid) for each in stopped)
    return Report(
        "stopped", f"{title(ranks).capitalize()} {_is(ranks)} stopped by a signal or a debugger.", True, ranks,
        next=[f"kill -CONT {pids}"],
    )  # fmt: skip


def _mismatched(evidence: Evidence, waits: Sequence[Pending]) -> Report | None:
    wrong = next((each for each in waits if each.mismatch), None)
    if wrong is None:
        return None
    what = f"Mismatched collective, number {wrong.number} of group {wrong.group}: {wrong.mismatch}."
    return Report("mismatch", what, True, wrong.arrived)


def _deadlocked(evidence: Evidence, waits: Sequence[Pending]) -> Report | None:
    """Ranks that wait for each other in different collectives."""
    of: dict[int, Pending] = {}
    for each in waits:
        for rank in each.waiting:
            of.setdefault(rank, each)
    cycle = next((found for rank in of if (found := _cycle(rank, of))), None)
    if cycle is None:
        return None
    told = [f"rank {rank} waits in {called(of[rank])}" for rank in cycle if of[rank].number >= 0]
    groups = sorted({of[rank].group for rank in cycle})
    what = f"groups {', '.join(groups)}" if len(groups) > 1 else f"group {groups[0]}"
    kinds = sorted({of[rank].kind.partition(" ")[0] for rank in cycle if of[rank].number < 0})
    how = f"all in {' or '.join(kinds)}" if not told else f"{what} used in another order"
    return Report(
        "deadlock", f"{title(cycle).capitalize()} wait for each other: {how}.", True, tuple(sorted(cycle)), told
    )


def _cycle(start: int, of: dict[int, Pending]) -> list[int]:
    """A way along who waits for whom that comes back to where it was."""
    way, rank = [start], start
    while rank in of:
        onward = [missing for missing in of[rank].missing if missing in of]
        if not onward:
            return []
        rank = onward[0]
        if rank in way:
            return way[way.index(rank) :]
        way.append(rank)
    return []


def _loader(evidence: Evidence, waits: Sequence[Pending]) -> Report | None:
    late = _late(evidence, waits)
    stuck = [each for each in late if _loads(each)]
    if not stuck or len(stuck) < len(late):
        return None
    ranks = tuple(each.rank for each in stuck)
    why = [f"rank {each.rank}: {worker}" for each in stuck for worker in each.workers]
    return Report("loader", f"{title(ranks).capitalize()} {_wait(ranks)} for the data loader.", True, ranks, why)


def _waiting(evidence: Evidence, waits: Sequence[Pending]) -> Report | None:
    late = _late(evidence, waits)
    if not waits or not late:
        return None
    return _waiting_for(late)


def _silent(evidence: Evidence, waits: Sequence[Pending]) -> Report | None:
    mute = [each for each in evidence.ranks if each.condition in ("silent", "unattached", "unseen")]
    return _waiting_for(mute) if mute else None


def _waiting_for(late: Sequence[OfRank]) -> Report:
    ranks = tuple(each.rank for each in late)
    told = list(dict.fromkeys(does(each) for each in late))
    if len(told) == 1:
        return Report("waiting", f"Waiting for {title(ranks)}, which {_of(ranks, told[0])}.", True, ranks)
    return Report("waiting", f"Waiting for {title(ranks)}: {'; '.join(together(late))}.", True, ranks)


def _stands(evidence: Evidence, waits: Sequence[Pending]) -> Report:
    """Nobody waits for anybody else as far as can be seen."""
    ranks = tuple(each.rank for each in evidence.ranks)
    still = [each for each in evidence.ranks if not each.moved and (each.running or 0) < BUSY]
    if waits:
        return Report(
            "collective", f"All have come to {called(waits[0])}, and it does not end: the network, or the device.",
            True, ranks,
        )  # fmt: skip
    told = "; ".join(together(evidence.ranks))
    if quiet_s(evidence) is None and (not still or _seen_s(evidence) < UNKNOWN_QUIET_S):
        return Report("unknown", f"Not known: no step and no collective has been seen yet; {told}.", False)
    if still:
        return Report("stands", f"It stands still: {told}.", True, tuple(each.rank for each in still))
    return Report("busy", f"No step has ended for long, and it computes: {told}.", True, ranks)


def _seen_s(evidence: Evidence) -> float:
    """How long every rank has been attached."""
    return min((each.attached_s for each in evidence.ranks if each.attached_s is not None), default=0.0)


def _late(evidence: Evidence, waits: Sequence[Pending]) -> list[OfRank]:
    """The ranks that others wait for and that wait for nobody; of one rank alone that one."""
    if len(evidence.ranks) == 1:
        return list(evidence.ranks)
    wait = {rank for each in waits for rank in each.waiting}
    wanted = [rank for rank in _waited_for(waits) if rank not in wait] or _waited_for(waits)
    found = [each for each in evidence.ranks if each.rank in wanted]
    if not waits and not found:
        found = [each for each in evidence.ranks if _loads(each)]
    return found


def _waited_for(waits: Sequence[Pending]) -> list[int]:
    return sorted({rank for each in waits for rank in (*each.missing, *each.unknown)})


def _loads(one: OfRank) -> bool:
    """Whether the main thread is inside of torch's data loader, or of what that has called."""
    return one.main is not None and any(frame.file.endswith(_LOADER) for frame in one.main.frames[:_INNERMOST])


def _of(ranks: Sequence[int], told: str) -> str:
    return told if len(ranks) == 1 else plural(told)


def _is(ranks: Sequence[int]) -> str:
    return "is" if len(ranks) == 1 else "are"


def _wait(ranks: Sequence[int]) -> str:
    return "waits" if len(ranks) == 1 else "wait"
