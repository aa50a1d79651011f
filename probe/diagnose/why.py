"""Why a job is slow, stuck or well: what the rules find in it, ordered by cost, and the verdict.

Called by Connection.why.  Invariant: no cause is told that explains less than 80 % of what it claims to; a consequence
is told under its cause; a job in which nothing was found is called healthy only if enough of it was seen.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import replace

from ..errors import Interrupted, ProbeError
from .diagnosis import Cause, Diagnosis
from .hang.report import Report
from .measures.places import EXPLAINS
from .rule import Finding, Rule, Severity
from .rules import ON_TABLES
from .stepless import with_profile
from .unknown import why_unknown
from .watch import NO_PROGRESS, Job, Progress, watch
from .watched import Watched

WARNING, CRITICAL = 0.1, 0.3  # of the step
_SURE = 0.9
_PLAIN, _BEYOND_DOUBT = 0.5, 0.99
_SEVERITIES: Sequence[Severity] = ("none", "hint", "warning", "critical")
_STATES = ("compiling", "idle", "ended")  # verdicts of two looks that need no longer one,
_MAY_PASS, _PASSES_S = ("compiling", "unknown"), 6.0  # unless they are over in a moment: the job has just started


def why(job: Job, seconds: float | None = None, progress: Progress = NO_PROGRESS) -> Diagnosis:
    """Look at the job twice; if it is not stuck, watch it and apply the rules on tables."""
    report, begun = job.hang(), time.monotonic()
    while report.code in _MAY_PASS and time.monotonic() - begun < _PASSES_S:
        report = job.hang()
    if report.hung or report.code in _STATES:
        return of_state(job.endpoint, report)
    diagnosis, begun = Diagnosis(job.endpoint, []), time.monotonic()
    with closing(watch(job, seconds, progress)) as looks:
        for watched in looks:
            diagnosis = judge(watched)
            if _is_plain(diagnosis) or (watched.is_whole and not diagnosis.undecided):
                break
    if diagnosis.steps:
        return diagnosis
    waited_s, report = time.monotonic() - begun, job.hang()
    return with_profile(of_state(job.endpoint, report), report, job, waited_s)


def _is_plain(diagnosis: Diagnosis) -> bool:
    """Whether one cause takes more than all others together, beyond doubt, and no rule that more time would let look
    may tell what is behind it."""
    if not diagnosis.causes:
        return False
    first = diagnosis.causes[0]
    doubted = any(rule.code in diagnosis.skipped and first.code in rule.of for rule in ON_TABLES)
    found = first.finding
    return not doubted and (found.share or 0.0) >= _PLAIN and (found.confidence or 0.0) >= _BEYOND_DOUBT


def judge(watched: Watched, rules: Iterable[Rule[Watched]] = ON_TABLES) -> Diagnosis:
    """What these rules find in the steps watched."""
    if not watched.steps:
        return _stepless(watched)
    found, checked, skipped, undecided = list[Cause](), list[str](), dict[str, str](), list[str]()
    for rule in rules:
        try:
            findings = list(rule.find(watched))
        except Interrupted:
            raise
        except ProbeError as error:
            skipped[rule.code] = error.message.rstrip(".")
            undecided += [rule.code] * (error.code == "undecided")
        else:
            checked.append(rule.code)
            found += [_cause(rule, finding, watched) for finding in findings]
    told = Diagnosis(
        watched.endpoint, ranked(found), tuple(checked), skipped, watched.steps, watched.step_s, watched.seconds,
        watched.samples_a_second, undecided=undecided, ranks=watched.ranks, missing=watched.missing,
    )  # fmt: skip
    doubt = None if told.causes else why_unknown(told, watched)
    if doubt is None:
        return told
    return replace(told, state="unknown", findings=[Cause("unknown", "none", doubt), *told.findings])


def _stepless(watched: Watched) -> Diagnosis:
    finding = Finding("Unknown: no whole step has been seen.", remedy=f"probe {watched.endpoint} hang")
    causes = [Cause("unknown", "none", finding)]
    return Diagnosis(watched.endpoint, causes, seconds=watched.seconds, state="unknown", missing=watched.missing)


def ranked(found: Iterable[Cause]) -> list[Cause]:
    """The most severe and dearest first.  What one of them explains is told under it."""
    ordered = sorted(found, key=lambda each: (-_SEVERITIES.index(each.severity), -(each.finding.seconds or 0.0)))
    causes, under = list[Cause](), dict[int, list[Cause]]()
    for each in ordered:
        cause = next((other for other in ordered if other is not each and _explains(other, each)), None)
        if cause is None:
            causes.append(each)
        else:
            under.setdefault(id(cause), []).append(each)
    return [each.with_consequences(_all_under(each, under)) for each in causes]


def _all_under(cause: Cause, under: dict[int, list[Cause]]) -> list[Cause]:
    direct = under.get(id(cause), [])
    return [*direct, *(each for one in direct for each in _all_under(one, under))]


def _explains(cause: Cause, found: Cause) -> bool:
    """Whether a finding is nothing but what another one, its cause, costs.  A cause that is doubted or small, and a
    hint for that alone, hides nothing above a hint."""
    if found.code not in cause.of or cause.severity == "none" or (_is_weak(cause) and _is_above_hint(found)):
        return False
    whole, part = found.finding.seconds, cause.finding.seconds
    return whole is None or (part is not None and part >= EXPLAINS * whole)


def _is_weak(cause: Cause) -> bool:
    return cause.severity == "hint" and cause.finding.severity != "hint"


def _is_above_hint(found: Cause) -> bool:
    return found.severity in ("warning", "critical")


def _cause(rule: Rule[Watched], finding: Finding, watched: Watched) -> Cause:
    return Cause(rule.code, _severity(rule, finding), finding, rule.query(watched.window), rule.of)


def _severity(rule: Rule[Watched], finding: Finding) -> Severity:
    """By share, where neither the finding nor the rule says it; what is not sure is a hint at most."""
    severity: Severity = finding.severity or rule.severity
    if finding.severity is None and rule.severity == "warning" and finding.share is not None:
        severity = "critical" if finding.share >= CRITICAL else "warning" if finding.share >= WARNING else "hint"
    unsure = finding.confidence is not None and finding.confidence < _SURE
    return "hint" if unsure and severity != "none" else severity


def of_state(endpoint: str, report: Report) -> Diagnosis:
    """The diagnosis of a job that does not step."""
    finding = Finding(report.verdict, report.ranks, report.why, report.next[0] if report.next else "")
    severity: Severity = "critical" if report.hung else "none"
    state = "hung" if report.hung else report.code if report.code in ("compiling", "idle", "ended") else "slow"
    return Diagnosis(endpoint, [Cause(report.code, severity, finding)], (), {}, 0, None, 0.0, None, state)
