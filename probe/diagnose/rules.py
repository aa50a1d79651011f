"""Every rule there is, and the verdict on a job that may be stuck: that of the surest rule that fits the evidence.

Called by Connection.hang.  Invariant: pure, and what cannot be known is said to be unknown; a job is called hung only
when it has been quiet for much longer than usual.  One of the last three rules on evidence always fits, so that every
job gets a verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..snapshot.flight_recorder import Pending
from ..text import title
from .evidence import Evidence, RankEvidence
from .report import Report, called, does, rank_lines, said, seconds, stack_lines, together, untested_lines, wait_lines
from .rule import Finding, Rule
from .stragglers import STEPS, stragglers

_LOOKS = 4  # ranks to look at from outside
_UNKNOWN_QUIET_S = 5.0  # where the usual time is not known
_QUIET = 5  # times as long as usual
_LEAST_QUIET_S = 3.0


def judge(evidence: Evidence) -> Report:
    evidence = evidence.with_unseen()
    rule, found = next((rule, finding) for rule in ON_EVIDENCE for finding in rule.find(evidence))
    hung = rule.severity == "critical"
    why = [*found.why, *wait_lines(evidence), *untested_lines(evidence), *rank_lines(evidence), *evidence.machines]
    stacks = stack_lines(evidence) if hung else []
    remedy = [found.remedy] if found.remedy else _next(evidence, found.ranks) if hung else []
    return Report(rule.code, found.sentence, hung, found.ranks, why, stacks, remedy)


def _next(evidence: Evidence, ranks: tuple[int, ...]) -> list[str]:
    """Look at the ranks that do not answer from outside, then at all stacks."""
    mute = [each for each in evidence.ranks if each.rank in ranks and each.condition in ("silent", "unattached")]
    looks = [f"py-spy dump --pid {each.pid}{f' (on {each.host})' * bool(each.host)}" for each in mute if each.pid]
    return [*looks[:_LOOKS], f"probe {evidence.endpoint} stack"]


def _gone(evidence: Evidence) -> Iterator[Finding]:
    ended = [each.rank for each in evidence.ranks if each.condition == "ended"]
    if gone := tuple(sorted({*ended, *evidence.absent})):
        yield Finding(f"{said(gone, 'is gone').capitalize()}.", gone, [f"{title(gone)}: the process no longer exists"])


def _not_hung(evidence: Evidence) -> Iterator[Finding]:
    quiet, usual = evidence.quiet_s, evidence.usual_quiet_s
    if quiet is not None and quiet <= (_UNKNOWN_QUIET_S if usual is None else max(_LEAST_QUIET_S, _QUIET * usual)):
        about = f" (usually every {seconds(usual)})" if usual is not None else ""
        yield Finding(f"Not hung: something moved {seconds(quiet)} ago{about}.")


def _slow(evidence: Evidence) -> Iterator[Finding]:
    if evidence.ranks and all(each.rows and each.condition == "answers" for each in evidence.ranks):
        why = [f"{each.rows} rows in {evidence.look_s:.1f} s on rank {each.rank}" for each in evidence.ranks]
        yield Finding("Slow, but alive: rows are being recorded, but no step has ended.", why=why)


def _stopped(evidence: Evidence) -> Iterator[Finding]:
    if stopped := [each for each in evidence.ranks if each.condition == "stopped"]:
        ranks = _numbers(stopped)
        remedy = f"kill -CONT {' '.join(str(each.pid) for each in stopped)}"
        yield Finding(f"{said(ranks, 'is stopped by a signal or a debugger').capitalize()}.", ranks, remedy=remedy)


def _mismatched(evidence: Evidence) -> Iterator[Finding]:
    for each in evidence.waits:
        if each.mismatch:
            which = f"collective number {each.number} of group {each.group}"
            yield Finding(f"Ranks disagree about {which} ({each.mismatch}).", each.arrived)


def _deadlocked(evidence: Evidence) -> Iterator[Finding]:
    waits: dict[int, Pending] = {}
    for each in evidence.waits:
        for rank in each.waiting:
            waits.setdefault(rank, each)
    for cycle in filter(None, (_cycle(rank, waits) for rank in waits)):
        why = [f"rank {rank} waits in {called(waits[rank])}" for rank in cycle if waits[rank].number >= 0]
        groups = sorted({waits[rank].group for rank in cycle})
        kinds = sorted({waits[rank].kind.partition(" ")[0] for rank in cycle if waits[rank].number < 0})
        order = f"they use group{'s' * (len(groups) > 1)} {', '.join(groups)} in different orders"
        how = order if why else f"all in {' or '.join(kinds)}"
        yield Finding(f"{title(cycle).capitalize()} wait for each other: {how}.", tuple(sorted(cycle)), why)


def _cycle(start: int, waits: Mapping[int, Pending]) -> list[int]:
    """The ranks on a path along "waits for" that comes back to one of them; empty if it ends."""
    path, rank = [start], start
    while rank in waits:
        onward = [missing for missing in waits[rank].missing if missing in waits]
        if not onward:
            return []
        rank = onward[0]
        if rank in path:
            return path[path.index(rank) :]
        path.append(rank)
    return []


def _loader(evidence: Evidence) -> Iterator[Finding]:
    late = evidence.late
    if late and all(each.is_loading for each in late):
        why = [f"rank {each.rank}: {worker}" for each in late for worker in each.workers]
        yield Finding(f"{said(_numbers(late), 'waits for the data loader').capitalize()}.", _numbers(late), why)


def _waiting(evidence: Evidence) -> Iterator[Finding]:
    """A rank that gives no answer is taken for the late one if nothing is known to be in flight."""
    mute = [each for each in evidence.ranks if each.condition in ("silent", "unattached", "unseen")]
    if late := (evidence.late if evidence.waits else []) or mute:
        ranks, doing = _numbers(late), does(late[0])
        if all(does(each) == doing for each in late):
            yield Finding(f"Waiting for {said(ranks, doing, ', which ')}.", ranks)
        else:
            yield Finding(f"Waiting for {title(ranks)}: {'; '.join(together(late))}.", ranks)


def _collective(evidence: Evidence) -> Iterator[Finding]:
    for each in evidence.waits[:1]:
        sentence = f"All ranks have reached {called(each)}, but it does not end: suspect the network or a device."
        yield Finding(sentence, _numbers(evidence.ranks))


def _unknown(evidence: Evidence) -> Iterator[Finding]:
    attached_s = min((each.attached_s for each in evidence.ranks if each.attached_s is not None), default=0.0)
    if evidence.quiet_s is None and (not _still(evidence) or attached_s < _UNKNOWN_QUIET_S):
        yield Finding(f"Unknown: no step and no collective has been seen yet; {_doing(evidence)}.")


def _stands(evidence: Evidence) -> Iterator[Finding]:
    if still := _still(evidence):
        yield Finding(f"The job stands still: {_doing(evidence)}.", _numbers(still))


def _busy(evidence: Evidence) -> Iterator[Finding]:
    sentence = f"No step has ended for long, but the job is computing: {_doing(evidence)}."
    yield Finding(sentence, _numbers(evidence.ranks))


def _still(evidence: Evidence) -> list[RankEvidence]:
    return [each for each in evidence.ranks if not each.moved and not each.is_busy]


def _doing(evidence: Evidence) -> str:
    return "; ".join(together(evidence.ranks))


def _numbers(ranks: Iterable[RankEvidence]) -> tuple[int, ...]:
    return tuple(each.rank for each in ranks)


# In the order of their certainty, because `hang` reports the first that finds something.
ON_EVIDENCE: tuple[Rule[Evidence], ...] = (
    Rule("gone", "A rank has ended.", _gone, "critical"),
    Rule("not-hung", "The job has not been quiet for longer than usual.", _not_hung, "none"),
    Rule("slow", "Rows are being recorded, but no step has ended for long.", _slow, "hint"),
    Rule("stopped", "A signal or a debugger has stopped a rank.", _stopped, "critical"),
    Rule(
        "mismatch", "Ranks issued collectives that do not match in operation, size or dtype.", _mismatched, "critical"
    ),
    Rule("deadlock", "Ranks wait for each other in different collectives.", _deadlocked, "critical"),
    Rule("loader", "The ranks that the others wait for are waiting for their data loader.", _loader, "critical"),
    Rule("waiting", "A rank has not reached a collective, or does not answer.", _waiting, "critical"),
    Rule("collective", "All ranks have reached a collective, and it does not end.", _collective, "critical"),
    Rule("unknown", "No step and no collective has been seen, before the attach or since.", _unknown, "none"),
    Rule("stands", "No rank waits for another, and some stand still.", _stands, "critical"),
    Rule("busy", "No rank waits for another, and all compute for much longer than a step.", _busy, "critical"),
)
RULES: tuple[Rule[Any], ...] = (
    *ON_EVIDENCE,
    Rule(
        "straggler",
        "A rank does more of its own work in a step than the others, which wait for it.",
        lambda tables: stragglers(tables, STEPS).findings,
        needs=("python.step_trace", "python.nccl_trace", "probe.collectives"),
    ),
)
