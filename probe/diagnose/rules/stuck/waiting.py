"""Ranks that all others wait for, and what they do instead."""

from __future__ import annotations

from collections.abc import Iterator

from ....text import title
from ...hang.evidence import Evidence
from ...hang.report import does, said, together
from ...rule import Finding, Rule
from .activity import UNKNOWN_QUIET_S


def _loader(evidence: Evidence) -> Iterator[Finding]:
    late = evidence.late
    if late and all(each.is_loading for each in late) and not _may_go_on(evidence):
        ranks = tuple(each.rank for each in late)
        why = [f"rank {each.rank}: {worker}" for each in late for worker in each.workers]
        yield Finding(f"{said(ranks, 'waits for the data loader').capitalize()}.", ranks, why)


def _may_go_on(evidence: Evidence) -> bool:
    """Whether nothing has been seen of the job yet, and it moves or is new to us: a batch may take that long."""
    if evidence.quiet_s is not None or evidence.waits or evidence.mute:
        return False
    return evidence.is_alive or evidence.attached_s < UNKNOWN_QUIET_S


def _waiting(evidence: Evidence) -> Iterator[Finding]:
    if late := (evidence.late if evidence.waits else []) or evidence.mute:
        ranks = tuple(each.rank for each in late)
        doing = does(late[0])
        if all(does(each) == doing for each in late):
            yield Finding(f"Waiting for {said(ranks, doing, ', which ')}.", ranks)
        else:
            yield Finding(f"Waiting for {title(ranks)}: {'; '.join(together(late))}.", ranks)


LOADER = Rule("loader", "The ranks that the others wait for are waiting for their data loader.", _loader, "critical")
WAITING = Rule("waiting", "A rank has not reached a collective, or does not answer.", _waiting, "critical")
