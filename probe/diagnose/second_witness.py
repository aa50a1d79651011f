"""What NCCL's own RAS threads say of a job that hangs, beside what probe has found: lines for the report.

Called by Connection.hang.  Invariant: NCCL is not asked about a job that does not hang, and changes no verdict.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import islice

from ..host.nccl_ras import Communicator, RasRank, communicators
from ..text import title
from .hang.evidence import Evidence
from .hang.report import Report
from .verdict import judge

_LINES = 6  # that a report has room for
_IN_PROGRESS = 7  # ncclInProgress: no error


def judged(evidence: Evidence) -> Report:
    """The report, with what NCCL says of the communicators of the processes on this host."""
    report = judge(evidence)
    if not report.hung:
        return report
    here = [each.pid for each in evidence.ranks if not each.host and each.condition != "ended"]
    lines = [line for each in communicators(here) for line in said_of(each)]
    return replace(report, why=[*report.why, *islice(dict.fromkeys(lines), _LINES)])


def said_of(one: Communicator) -> list[str]:
    """What is wrong in a communicator, in lines."""
    name = f"NCCL says of a communicator of {one.size} ranks:"
    lines = [
        f"{name} {_called(each)} {told}"
        for each in one.ranks
        for told in (each.why_missing, f"has error {each.error}" * (each.error not in (0, _IN_PROGRESS)),
                     "was aborted" * each.aborted)
        if told
    ]  # fmt: skip
    known = [each for each in one.ranks if not each.why_missing]
    for operation in sorted({name for each in known for name in each.calls}):
        by_count = Counter(each.calls.get(operation, 0) for each in known)
        if len(by_count) > 1:
            lines.append(f"{name} {operation} was called {_by_count(known, operation, sorted(by_count))}")
    return lines


def _by_count(ranks: list[RasRank], operation: str, counts: list[int]) -> str:
    """`120 times by rank 3, 121 times by ranks 0-2`, the fewest first."""
    those = {count: [each.rank for each in ranks if each.calls.get(operation, 0) == count] for count in counts}
    return ", ".join(f"{count} times by {title(sorted(of))}" for count, of in those.items())


def _called(rank: RasRank) -> str:
    """Its number in the communicator, which may be another one than in the job, and its process."""
    return f"rank {rank.rank} (pid {rank.pid} on {rank.host})"
