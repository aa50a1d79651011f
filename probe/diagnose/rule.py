"""The seam of all diagnoses: a rule has a code, says what it needs and finds, and gives findings with a remedy.

Every file of probe.diagnose.rules declares rules; probe.diagnose.hang applies those on evidence.  Invariant: a rule
changes nothing in the job, and finds nothing where it lacks data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, Literal, Protocol, TypeVar

from ..host.facts import Facts
from ..query.result import Result

Severity = Literal["none", "hint", "warning", "critical"]
Subject = TypeVar("Subject", contravariant=True)


class Tables(Protocol):
    """The tables of a job: what rules ask of a Connection."""

    endpoint: str
    notes: list[str]

    @property
    def agents(self) -> list[Facts]: ...

    def query(self, sql: str) -> Result: ...


@dataclass(frozen=True)
class Finding:
    """sentence: what is wrong, with its figures; ranks: those it names; why: lines that prove it; remedy: the next
    command; seconds: what it costs in each step; share: of the step, 0 to 1; confidence: 0 to 1."""

    sentence: str
    ranks: tuple[int, ...] = ()
    why: list[str] = field(default_factory=list)
    remedy: str = ""
    seconds: float | None = None
    share: float | None = None
    confidence: float | None = None


@dataclass(frozen=True)
class Rule(Generic[Subject]):
    """code: stable, for scripts; doc: what it finds, in one sentence; needs: the tables it reads, () if it judges the
    evidence; severity: critical if the job is stuck, none if all is well or unknown.

    find: pure but for its queries; raises ProbeError where the rule cannot look (one rank only, too few steps).
    """

    code: str
    doc: str
    find: Callable[[Subject], Iterable[Finding]]
    severity: Severity = "warning"
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sql:
    """`find` of a rule that is one query: each row is a finding.  sentence and remedy are templates, filled from the
    row's columns and {endpoint}; the columns rank, seconds, share and confidence become those of the finding."""

    sql: str
    sentence: str
    remedy: str = ""

    def __call__(self, tables: Tables) -> Iterator[Finding]:
        for row in tables.query(self.sql):
            values = {"endpoint": tables.endpoint, **row}
            yield Finding(
                self.sentence.format(**values),
                () if row.get("rank") is None else (row["rank"],),
                remedy=self.remedy.format(**values),
                seconds=row.get("seconds"),
                share=row.get("share"),
                confidence=row.get("confidence"),
            )
