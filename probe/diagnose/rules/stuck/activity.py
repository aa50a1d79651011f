"""Jobs that are not stuck: something moved not long ago, or the ranks that the others wait for compute or move."""

from __future__ import annotations

from collections.abc import Iterator

from ....text import grouped
from ...hang.evidence import Evidence, RankEvidence
from ...hang.report import place, said, seconds, together
from ...rule import Finding, Rule

UNKNOWN_QUIET_S = 5.0  # where the usual time is not known
_QUIET = 5  # times as long as usual
_LEAST_QUIET_S = 3.0


def _not_hung(evidence: Evidence) -> Iterator[Finding]:
    quiet, usual = evidence.quiet_s, evidence.usual_quiet_s
    if quiet is not None and quiet <= (UNKNOWN_QUIET_S if usual is None else max(_LEAST_QUIET_S, _QUIET * usual)):
        about = f" (usually every {seconds(usual)})" if usual is not None else ""
        yield Finding(f"Not hung: something moved {seconds(quiet)} ago{about}.")


def _compiling(evidence: Evidence) -> Iterator[Finding]:
    compiling = [each for each in evidence.awaited if each.is_compiling]
    if compiling:
        ranks = tuple(each.rank for each in compiling)
        yield Finding(f"Not hung: {'; '.join(together(compiling))}.", ranks)


def _slow(evidence: Evidence) -> Iterator[Finding]:
    if evidence.ranks and all(each.rows and each.condition == "answers" for each in evidence.ranks):
        why = [f"{each.rows} rows in {evidence.look_s:.1f} s on rank {each.rank}" for each in evidence.ranks]
        yield Finding("Slow, but alive: rows are being recorded, but no step has ended.", why=why)
    elif evidence.is_alive and (evidence.quiet_s is not None or evidence.awaited != evidence.ranks):
        ranks = tuple(each.rank for each in evidence.awaited)
        others = "; the others wait" if evidence.waits else ""
        ago = "" if evidence.quiet_s is None else f" No step has ended for {seconds(evidence.quiet_s)}."
        yield Finding(f"Slow, but alive: {'; '.join(together(evidence.awaited))}{others}.{ago}", ranks)


def _unclear(evidence: Evidence) -> Iterator[Finding]:
    computes = [each for each in evidence.awaited if each.is_busy and each.condition == "answers"]
    unclear = [each for each in evidence.awaited if each.may_compute and each not in computes]
    if evidence.may_be_alive and unclear:
        why = [
            f"rank {each.rank} works for {1e3 * (each.work_s or 0):.1f} ms at a time, {each.running:.0%} of a core"
            for each in unclear
        ]
        sentence = f"Unclear: {'; '.join(together(unclear))}: it computes a little, or polls."
        yield Finding(sentence, tuple(each.rank for each in unclear), why)


def _idle(evidence: Evidence) -> Iterator[Finding]:
    if not evidence.ranks or evidence.waits:
        return
    if all(each.is_idle for each in evidence.ranks):
        yield Finding(f"Idle, as a server is: {'; '.join(together(evidence.ranks))}.")
    elif evidence.quiet_s is None and all(each.is_idle or each.sleeps for each in evidence.ranks):
        same = grouped((_sleeps(each), each.rank) for each in evidence.ranks)
        told = "; ".join(said(ranks, each) for each, ranks in same.items())
        yield Finding(f"Idle: {told}; no step and no collective has been seen.")


def _sleeps(one: RankEvidence) -> str:
    how = "is waiting" if one.is_idle else "is asleep, or waits for input,"
    return f"{how} in {place(one.thread.frames) if one.thread is not None else 'no Python code'}"


NOT_HUNG = Rule("not-hung", "The job has not been quiet for longer than usual.", _not_hung, "none")
COMPILING = Rule("compiling", "A rank is compiling, and the others wait for it, if there are any.", _compiling, "none")
SLOW = Rule("slow", "No step has ended for long, but the job computes or moves.", _slow, "hint")
UNCLEAR = Rule("unclear", "It cannot be told whether a rank computes or only polls.", _unclear, "none")
IDLE = Rule("idle", "It waits for somebody to ask for something, or sleeps and never did a step.", _idle, "none")
