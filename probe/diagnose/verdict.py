"""Why a job is stuck: the verdict of the surest rule that fits the evidence, what speaks for it, and what to do next.

Called by Connection.hang.  Invariant: pure, and what cannot be known is said to be unknown; a job is called hung only
when it has been quiet for much longer than usual.
"""

from __future__ import annotations

from .hang.evidence import Evidence
from .hang.report import Report, left_alone_lines, rank_lines, stack_lines, wait_lines
from .rules import ON_EVIDENCE

_LOOKS = 4  # ranks to look at from outside


def judge(evidence: Evidence) -> Report:
    evidence = evidence.with_unseen()
    rule, found = next((rule, finding) for rule in ON_EVIDENCE for finding in rule.find(evidence))
    hung = rule.severity == "critical"
    why = [*found.why, *wait_lines(evidence), *left_alone_lines(evidence), *rank_lines(evidence), *evidence.machines]
    named = hung or (rule.severity == "hint" and found.ranks)
    stacks = stack_lines(evidence) if named else []
    remedy = [found.remedy] if found.remedy else _next(evidence, found.ranks) if named else []
    return Report(rule.code, found.sentence, hung, found.ranks, why, stacks, remedy)


def _next(evidence: Evidence, ranks: tuple[int, ...]) -> list[str]:
    """Look from outside at the ranks that do not answer and whose stacks could not be read, then at all stacks."""
    unseen = [each for each in evidence.ranks if each.rank in ranks and not each.threads]
    mute = [each for each in unseen if each.condition in ("silent", "unattached")]
    looks = [f"py-spy dump --pid {each.pid}{f' (on {each.host})' * bool(each.host)}" for each in mute if each.pid]
    return [*looks[:_LOOKS], f"probe {evidence.endpoint} stack"]
