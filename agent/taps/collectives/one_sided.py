"""Whether a collective that an eval is about to issue would hang the job, and why.

The tap of collectives checks this before it sends anything.
Invariant: refusal() returns None only if every rank that has to take part runs the eval too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Running(Protocol):
    """An eval in progress: the ranks it runs on (None: all ranks of the job), and where: at a boundary or "now"."""

    @property
    def ranks(self) -> Sequence[int] | None: ...
    @property
    def where(self) -> str: ...


def refusal(evaluation: Running, operation: str, group: str, ranks: Sequence[int]) -> str | None:
    """One sentence for the author of the snippet; ranks: all that have to take part, including this one."""
    if len(ranks) < 2:
        return None
    what = f"{operation} on group {group!r} needs {_named(ranks)}"
    if evaluation.where == "now":
        return f"{what}, which are in the midst of a step: run the eval at a boundary and on all ranks, without --now"
    missing = [] if evaluation.ranks is None else sorted(set(ranks) - set(evaluation.ranks))
    if not missing:
        return None
    return f"{what}, but this eval does not run on {_named(missing)} and the job would hang: run it on all ranks"


def _named(ranks: Sequence[int]) -> str:
    first, last = ranks[0], ranks[-1]
    if len(ranks) == 1:
        return f"rank {first}"
    if len(ranks) > 2 and list(ranks) == list(range(first, last + 1)):
        return f"ranks {first}-{last}"
    return "ranks " + ", ".join(map(str, ranks))
