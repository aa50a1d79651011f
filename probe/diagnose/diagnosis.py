"""What `probe why` returns: the verdict, the findings with their cost and remedy, and what was looked at.

Made by probe.diagnose.why.  Invariant: pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..text import some
from .figures import figure, ms
from .rule import Finding, Severity

_MOST_REASONS, _SHORT = 3, 80  # reasons, and characters of a place, that a line has room for


@dataclass(frozen=True)
class Cause:
    """A finding of a rule.  sql: the query that shows it; of: codes that it may be the cause of; consequences: findings
    that are nothing but what this one costs.

    Example: `[(each.code, each.severity, each.finding.remedy) for each in job.why().findings]`
    """

    code: str
    severity: Severity
    finding: Finding
    sql: str = ""
    of: tuple[str, ...] = ()
    consequences: tuple[Cause, ...] = ()

    def with_consequences(self, consequences: Iterable[Cause]) -> Cause:
        return replace(self, consequences=tuple(consequences))

    def as_json(self, diagnosis: Diagnosis) -> dict[str, Any]:
        found = self.finding
        return {
            "code": self.code, "severity": self.severity, "seconds_per_step": found.seconds, "share": found.share,
            "confidence": found.confidence, "sentence": found.sentence, "ranks": list(found.ranks),
            "evidence": found.why, "where": found.where or None, "now": found.now or None, "try": found.remedy or None,
            "effect": found.effect or None, "estimate": diagnosis.estimate(found), "sql": self.sql or None,
            "consequences": [each.as_json(diagnosis) for each in self.consequences],
        }  # fmt: skip


@dataclass(frozen=True)
class Diagnosis:
    """Why a job is slow, stuck or well: what `Connection.why` returns.

    findings: by severity, then by cost; checked: codes of the rules that have looked; skipped: those that could not,
    and why; undecided: those of them that more time may decide; steps, seconds: how much was watched; step_s:
    the mean step; samples_s: per second, of all ranks; state: hung, compiling, idle, ended, slow or unknown, if it is
    that; ranks: whose steps were seen; missing: those that did not answer, and were not read from memory either.

    Example: `print(job.why().sentence)`
    """

    endpoint: str
    findings: Sequence[Cause]
    checked: Sequence[str] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)
    steps: int = 0
    step_s: float | None = None
    seconds: float = 0.0
    samples_s: float | None = None
    state: str = ""
    undecided: Sequence[str] = ()
    ranks: Sequence[int] = ()
    missing: Sequence[int] = ()

    @property
    def causes(self) -> list[Cause]:
        """The findings above a hint."""
        return [each for each in self.findings if each.severity in ("warning", "critical")]

    @property
    def code(self) -> str:
        return self.state or (self.causes[0].code if self.causes else "healthy")

    @property
    def severity(self) -> Severity:
        return self.causes[0].severity if self.causes else "none"

    @property
    def sentence(self) -> str:
        if self.state or self.causes:
            return (self.causes or self.findings)[0].finding.sentence
        seen = f" on {len(self.ranks)} of {len(self.ranks) + len(self.missing)} ranks" if self.missing else ""
        return (
            f"Healthy: in {self.steps} steps of {ms(self.step_s or 0.0)}{seen}, {len(self.checked)} rules found "
            "nothing that costs a tenth of a step or more."
        )

    def estimate(self, finding: Finding) -> dict[str, Any] | None:
        """What a step would take, and how many samples a second that makes, under which assumption."""
        if finding.saves is None or self.step_s is None:
            return None
        step_s = max(0.0, self.step_s - finding.saves)
        samples_s = self.samples_s * self.step_s / step_s if self.samples_s and step_s else None
        return {"step_s": step_s, "samples_s": samples_s, "assumes": finding.assumes or None}

    def as_json(self) -> dict[str, Any]:
        return {
            "verdict": {"code": self.code, "severity": self.severity, "sentence": self.sentence},
            "findings": [each.as_json(self) for each in self.findings],
            "checked": list(self.checked),
            "skipped": [{"code": code, "reason": reason} for code, reason in self.skipped.items()],
            "steps": self.steps, "seconds": self.seconds, "step_s": self.step_s, "samples_s": self.samples_s,
            "missing": list(self.missing),
        }  # fmt: skip

    def parts(self) -> dict[str, list[str]]:
        """Lines for a person, by the heading that they stand under."""
        parts = {"Verdict": [self.sentence]}
        shown = (self.causes or self.findings)[0] if self.state or self.causes else None
        if shown is not None:
            parts |= self._about(shown)
        others = [each for each in self.findings if each is not shown]
        parts["Also"] = [_brief(each) for each in others]
        parts["Looked"] = [self._looked()] if self.checked or self.skipped else []
        return {heading: lines for heading, lines in parts.items() if lines}

    def _about(self, cause: Cause) -> dict[str, list[str]]:
        found, sql = cause.finding, [f"SQL: probe {self.endpoint} why --sql {cause.code}"] if cause.sql else []
        consequences = [f"so also: {each.finding.sentence}" for each in cause.consequences]
        changes = found.remedy.startswith(f"probe {self.endpoint} eval ")
        return {
            "Cost": [self._cost(found)] if found.seconds is not None and self.step_s else [],
            "Evidence": [*found.why, *consequences, *sql],
            "Where": [found.where] if found.where else [],
            "Now": [found.now] if found.now else [],
            "Try": [line for line in (found.remedy, found.effect) if line],
            "Then": [f"probe {self.endpoint} why --since-change"] if changes else [],
        }

    def _cost(self, found: Finding) -> str:
        """`61 ms of 81 ms a step; 129 samples/s now, about 520 if …`."""
        line = f"{ms(found.seconds or 0.0)} of {ms(self.step_s or 0.0)} a step"
        estimate = self.estimate(found)
        if estimate is None:
            return f"{line}."
        gain = f"about {ms(estimate['step_s'])}"
        if estimate["samples_s"] is not None:
            line += f"; {figure(self.samples_s or 0.0)} samples/s now"
            gain = f"about {figure(estimate['samples_s'])}"
        return f"{line}, {gain} {found.assumes or 'without it'}."

    def _looked(self) -> str:
        looked = (
            f"{len(self.checked)} rule{'s' * (len(self.checked) != 1)} at {self.steps} steps in {self.seconds:.0f} s"
        )
        reasons = Counter(_clause(reason) for reason in self.skipped.values()).most_common()
        told = [f"{reason} ({count})" if count > 1 else reason for reason, count in reasons[:_MOST_REASONS]]
        more = ["others: see --json"] if reasons[_MOST_REASONS:] else []
        looked += f", {len(self.skipped)} could not: {'; '.join(told + more)}" if reasons else ""
        silent = f"; rank{'s' * (len(self.missing) > 1)} {some(self.missing)} did not answer" if self.missing else ""
        return f"{looked}{silent}."


def _clause(reason: str) -> str:
    """A reason in few words: `fewer than 40 sampled steps`, `only one rank`."""
    words = reason.partition(":")[0].partition(" tell ")[0]
    return words[:1].lower() + words[1:]


def _brief(cause: Cause) -> str:
    """A line for a finding that is not the verdict: its sentence, its place if that is short, and its remedy if that is
    a command."""
    found = cause.finding
    where = f" Where: {found.where}." if found.where and len(found.where) <= _SHORT else ""
    remedy = f"  {found.remedy}" if found.remedy.startswith("probe ") else ""
    return f"{found.sentence}{where}{remedy}"
