"""Jobs that do not step although no rank waits for another one, as far as can be seen.

Invariant: one of these always fits, so that every job gets a verdict.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...hang.evidence import Evidence, RankEvidence
from ...hang.report import called, together
from ...rule import Finding, Rule
from .activity import UNKNOWN_QUIET_S


def _collective(evidence: Evidence) -> Iterator[Finding]:
    for each in evidence.waits[:1]:
        sentence = f"All ranks have reached {called(each)}, but it does not end: suspect the network or a device."
        yield Finding(sentence, _all(evidence))


def _unknown(evidence: Evidence) -> Iterator[Finding]:
    if evidence.quiet_s is None and (not _still(evidence) or evidence.attached_s < UNKNOWN_QUIET_S):
        yield Finding(f"Unknown: no step and no collective has been seen yet; {_doing(evidence)}.")


def _stands(evidence: Evidence) -> Iterator[Finding]:
    still = tuple(each.rank for each in _still(evidence))
    yield Finding(f"The job stands still: {_doing(evidence)}.", still or _all(evidence))


def _still(evidence: Evidence) -> list[RankEvidence]:
    return [each for each in evidence.ranks if not each.is_alive]


def _doing(evidence: Evidence) -> str:
    return "; ".join(together(evidence.ranks))


def _all(evidence: Evidence) -> tuple[int, ...]:
    return tuple(each.rank for each in evidence.ranks)


COLLECTIVE = Rule("collective", "All ranks have reached a collective, and it does not end.", _collective, "critical")
UNKNOWN = Rule("unknown", "No step and no collective has been seen, before the attach or since.", _unknown, "none")
STANDS = Rule("stands", "No rank waits for another, and some stand still.", _stands, "critical")
