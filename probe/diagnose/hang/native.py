"""What ranks that stand still wait for below Python: the C and C++ functions of the thread that trains.

Called by Connection.native_stacks, and by Connection.hang for the ranks that its verdict names.  Invariant: a rank that
goes on is left alone, for the look would stop it; ranks are looked at one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ...errors import UsageError
from ...host.native_frames import NativeFrame, can_read_native_frames, native_frames
from ...text import grouped
from .evidence import Evidence, RankEvidence
from .report import Report, said

_MOST_RANKS = 4  # that a report looks at
Native = dict[int, list[NativeFrame]]


def natives_of(ranks: Iterable[RankEvidence]) -> Native:
    """Of those that stand still on this host, by rank: innermost first."""
    found: Native = {}
    for each in ranks:
        if stands_still(each) and (frames := _of_training_thread(each)):
            found[each.rank] = frames
    return found


def stands_still(rank: RankEvidence) -> bool:
    return not (rank.host or rank.is_alive or rank.may_compute) and rank.condition in ("answers", "silent")


def why_not(rank: RankEvidence) -> str:
    """Why this rank has no native frames, in a sentence."""
    if rank.host:
        return f"Rank {rank.rank} is on {rank.host}: look there."
    if stands_still(rank):
        return f"Rank {rank.rank} (pid {rank.pid}): its native frames could not be read."
    goes_on = rank.condition in ("answers", "silent")
    told = "goes on, and a look would stop it" if goes_on else f"is {rank.condition}"
    return f"Rank {rank.rank} (pid {rank.pid}) {told}: no native frames."


def require_pystack() -> None:
    """Raises UsageError where it is not installed."""
    if not can_read_native_frames():
        raise UsageError("Native frames need the package pystack.", "Run: pip install pystack", "needs-package")


def _of_training_thread(rank: RankEvidence) -> list[NativeFrame]:
    thread = rank.thread
    tid = rank.pid if thread is None or thread.is_main or thread.native_id is None else thread.native_id
    return native_frames(rank.pid).get(tid, [])


def with_native(report: Report, evidence: Evidence) -> Report:
    """If the job hangs, the same with what the ranks that it names are in below Python, in the verdict if it is one."""
    if not report.hung:
        return report
    named = [each for each in evidence.ranks if each.rank in report.ranks or not report.ranks]
    found = natives_of(named[:_MOST_RANKS])
    same = grouped((_telling(frames), rank) for rank, frames in found.items())
    lines = [said(ranks, f"is in {called}, below Python") for called, ranks in same.items()]
    verdict = report.verdict
    if len(same) == 1:
        verdict = f"{verdict.rstrip('.')}; below Python in {next(iter(same)).function}."
    return replace(report, verdict=verdict, why=[*lines, *report.why])


def _telling(frames: Sequence[NativeFrame]) -> NativeFrame:
    """The innermost function that is not the C or C++ library's."""
    return next((frame for frame in frames if not frame.is_of_system), frames[0])
