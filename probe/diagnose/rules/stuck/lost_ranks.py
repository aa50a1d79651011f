"""Ranks whose process is gone or stopped."""

from __future__ import annotations

from collections.abc import Iterator

from ....text import title
from ...hang.evidence import Evidence
from ...hang.report import said
from ...rule import Finding, Rule


def _all_ended(evidence: Evidence) -> Iterator[Finding]:
    if evidence.ranks and all(each.condition == "ended" for each in evidence.ranks):
        ranks = tuple(each.rank for each in evidence.ranks)
        yield Finding(f"{said(ranks, 'has ended').capitalize()}.", ranks)


def _gone(evidence: Evidence) -> Iterator[Finding]:
    ended = [each.rank for each in evidence.ranks if each.condition == "ended"]
    if gone := tuple(sorted({*ended, *evidence.absent})):
        yield Finding(f"{said(gone, 'is gone').capitalize()}.", gone, [f"{title(gone)}: the process no longer exists"])


def _stopped(evidence: Evidence) -> Iterator[Finding]:
    stopped = [each for each in evidence.ranks if each.condition == "stopped"]
    if stopped:
        ranks = tuple(each.rank for each in stopped)
        remedy = f"kill -CONT {' '.join(str(each.pid) for each in stopped)}"
        yield Finding(f"{said(ranks, 'is stopped by a signal or a debugger').capitalize()}.", ranks, remedy=remedy)


ENDED = Rule("ended", "No rank is left that could be stuck.", _all_ended)
GONE = Rule("gone", "A rank has ended.", _gone, "critical")
STOPPED = Rule("stopped", "A signal or a debugger has stopped a rank.", _stopped, "critical")
