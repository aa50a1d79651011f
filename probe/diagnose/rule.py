"""The seam of all diagnoses: a rule has a code, says what it needs and finds, and gives findings with a remedy.

Every file of probe.diagnose.rules declares rules; verdict.py applies those on evidence, why.py those on tables.
Invariant: a rule changes nothing in the job, and finds nothing where it lacks data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Protocol, TypeVar

from ..host.facts import Facts
from ..query.result import Result

Severity = Literal["none", "hint", "warning", "critical"]
Subject = TypeVar("Subject", contravariant=True)
_TEXTS = ("remedy", "where", "now", "effect", "assumes")
_FIGURES = ("seconds", "share", "confidence", "saves")


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
    command, or what to change in the code; seconds: what it costs in each step, averaged over steps and ranks; share:
    of the step, 0 to 1; confidence: 0 to 1.

    severity: if neither its share nor its rule says it; where: the function, module or loader; now: the settings that
    it is about; effect: when the remedy takes effect; saves: seconds of each step that it should save, under the
    assumption `assumes`.
    """

    sentence: str
    ranks: tuple[int, ...] = ()
    why: list[str] = field(default_factory=list)
    remedy: str = ""
    seconds: float | None = None
    share: float | None = None
    confidence: float | None = None
    severity: Severity | None = None
    where: str = ""
    now: str = ""
    effect: str = ""
    saves: float | None = None
    assumes: str = ""


@dataclass(frozen=True)
class Rule(Generic[Subject]):
    """code: stable, for scripts; doc: what it finds, in one sentence; needs: the tables it reads, () if it judges the
    evidence; severity: critical if the job is stuck, none if all is well or unknown, warning if the share decides;
    of: the codes of findings that it may be the cause of; sql: the query that shows it, which users can run, where
    {window} stands for the steps watched; asks: expressions that it reads from the job, which a recorder reads for it
    (measures/live_values.py).

    find: pure but for its queries; raises ProbeError where the rule cannot look (one rank only, too few steps).
    """

    code: str
    doc: str
    find: Callable[[Subject], Iterable[Finding]]
    severity: Severity = "warning"
    needs: tuple[str, ...] = ()
    of: tuple[str, ...] = ()
    sql: str = ""
    asks: tuple[str, ...] = ()

    def query(self, window: str) -> str:
        """Its SQL for these steps; '' if it has none."""
        return (self.find.sql if isinstance(self.find, Sql) else self.sql).replace("{window}", window)


@dataclass(frozen=True)
class Sql:
    """`find` of a rule that is one query: each row is a finding.  {window} in the SQL becomes the steps watched.

    The texts are templates, filled from the row's columns and {endpoint}; the columns rank, seconds, share, confidence
    and saves become those of the finding.
    """

    sql: str
    sentence: str
    remedy: str = ""
    where: str = ""
    now: str = ""
    effect: str = ""
    assumes: str = ""

    def __call__(self, tables: Tables) -> Iterator[Finding]:
        sql = self.sql.replace("{window}", getattr(tables, "window", "true"))
        for row in tables.query(sql):
            values = {"endpoint": tables.endpoint, **row}
            texts: dict[str, Any] = {name: getattr(self, name).format(**values) for name in _TEXTS}
            figures: dict[str, Any] = {name: row.get(name) for name in _FIGURES}
            ranks = () if row.get("rank") is None else (row["rank"],)
            yield Finding(self.sentence.format(**values), ranks, **figures, **texts)
