"""What the rules of `why` find on either side, by code.

Called by compare.py.  Invariant: a run is judged by what was recorded of it; nothing looks at the job as it is now,
which says nothing of steps that are over.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from ...host.facts import Facts
from ...query.result import Result
from ..diagnosis import Cause, Diagnosis
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
    judged = [[_judged(run, asked) for run in runs] for runs in sides]
    found = [[{each.code: each for each in run.findings} for run in runs] for runs in judged]
    unknown = [_usual([run.skipped for run in runs]) for runs in judged]
    before, after = (_usual(runs) for runs in found)
    dear = {each.code for runs in judged for run in runs for each in run.causes}
    return [_found(code, found, ([before, after], unknown)) for code in sorted((before | after) & dear)]


def _judged(seen: Seen, rules: Sequence[Rule[Watched]]) -> Diagnosis:
    watched = Watched(_Past(seen.run.tables), seen.first, seen.last, why_not_profiled=_NO_PROFILE)
    return judge(watched, rules)


def _usual(runs: Sequence[Collection[str]]) -> set[str]:
    """Codes of most of them."""
    return {code for run in runs for code in run if 2 * sum(code in each for each in runs) > len(runs)}


def _found(
    code: str, sides: Sequence[Sequence[Mapping[str, Cause]]], codes: tuple[Sequence[set[str]], Sequence[set[str]]]
) -> Found:
    """codes: those that each side has, and those that it cannot tell."""
    causes = [[run[code] for run in runs if code in run] for runs in sides]
    on, unknown = (tuple(name for name, known in zip("AB", each, strict=True) if code in known) for each in codes)
    before, after = (_share(each) if name in on else None for name, each in zip("AB", causes, strict=True))
    return Found(code, on, unknown, before, after, causes["AB".index(on[0])][0].finding.sentence)


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
