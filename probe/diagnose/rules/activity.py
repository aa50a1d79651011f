"""Jobs that are not stuck: something moved not long ago, or rows are being recorded."""

from __future__ import annotations

from collections.abc import Iterator

from ..evidence import Evidence
from ..report import seconds
from ..rule import Finding, Rule

UNKNOWN_QUIET_S = 5.0  # where the usual time is not known
_QUIET = 5  # times as long as usual
_LEAST_QUIET_S = 3.0


def _not_hung(evidence: Evidence) -> Iterator[Finding]:
    quiet, usual = evidence.quiet_s, evidence.usual_quiet_s
    if quiet is not None and quiet <= (UNKNOWN_QUIET_S if usual is None else max(_LEAST_QUIET_S, _QUIET * usual)):
        about = f" (usually every {seconds(usual)})" if usual is not None else ""
        yield Finding(f"Not hung: something moved {seconds(quiet)} ago{about}.")


def _slow(evidence: Evidence) -> Iterator[Finding]:
    if evidence.ranks and all(each.rows and each.condition == "answers" for each in evidence.ranks):
        why = [f"{each.rows} rows in {evidence.look_s:.1f} s on rank {each.rank}" for each in evidence.ranks]
        yield Finding("Slow, but alive: rows are being recorded, but no step has ended.", why=why)


NOT_HUNG = Rule("not-hung", "The job has not been quiet for longer than usual.", _not_hung, "none")
SLOW = Rule("slow", "Rows are being recorded, but no step has ended for long.", _slow, "hint")
