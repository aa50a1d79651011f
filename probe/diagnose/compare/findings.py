"""What the rules of `why` find on either side, by code.

Called by compare.py.  Invariant: a run is judged by what was recorded of it; nothing looks at the job as it is now,
which says nothing of steps that are over.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...host.facts import Facts
from ...query.result import Result
from ..diagnosis import Cause
from ..rule import Rule, Tables
from ..watched import Watched
from ..why import judge
from .contrasts import Sides
from .report import Found
from .run import Seen

_OF_NOW = {"python.stack", "python.tensor_trace"}  # tables that look when they are queried
_NO_PROFILE = "runs are compared by their steps"


def findings(sides: Sides, rules: Sequence[Rule[Watched]]) -> list[Found]:
    """Above a hint in most runs of a side; of the other side, also hints."""
    asked = [rule for rule in rules if not _OF_NOW.intersection(rule.needs)]
    found = [[_judged(run, asked) for run in runs] for runs in sides]
    before, after = (_usual(runs) for runs in found)
    dear = {each.code for runs in found for run in runs for each in run.values() if each.severity != "hint"}
    return [_found(code, found, (code in before, code in after)) for code in sorted((before | after) & dear)]


def _judged(seen: Seen, rules: Sequence[Rule[Watched]]) -> dict[str, Cause]:
    watched = Watched(_Past(seen.run.tables), seen.first, seen.last, why_not_profiled=_NO_PROFILE)
    return {each.code: each for each in judge(watched, rules).findings}


def _usual(runs: Sequence[dict[str, Cause]]) -> set[str]:
    """Codes found in most of them."""
    return {code for run in runs for code in run if 2 * sum(code in each for each in runs) > len(runs)}


def _found(code: str, sides: Sequence[Sequence[dict[str, Cause]]], has: tuple[bool, bool]) -> Found:
    causes = [[run[code] for run in runs if code in run] for runs in sides]
    shares = [_share(each) if is_usual else None for each, is_usual in zip(causes, has, strict=True)]
    on = tuple(name for name, is_usual in zip(("A", "B"), has, strict=True) if is_usual)
    return Found(code, on, shares[0], shares[1], causes[not has[0]][0].finding.sentence)


def _share(causes: Sequence[Cause]) -> float | None:
    known = [each.finding.share for each in causes if each.finding.share is not None]
    return float(np.mean(known)) if known else None


class _Past:
    """The tables of a run, without its processes."""

    def __init__(self, tables: Tables) -> None:
        self._tables, self.endpoint, self.notes = tables, tables.endpoint, list[str]()

    @property
    def agents(self) -> list[Facts]:
        """On no host that is known, so that nobody looks there."""
        return [facts._replace(boot_id="") for facts in self._tables.agents]

    def query(self, sql: str) -> Result:
        return self._tables.query(sql)
