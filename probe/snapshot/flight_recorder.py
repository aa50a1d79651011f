"""torch's Flight Recorders of all ranks: what is in flight, which ranks have not arrived, and where ranks disagree.

Called by probe.diagnose.hang with what the agents sent.  The recorder also knows what was issued before the attach.
Invariant: pure; a rank that reported nothing is never called missing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..text import title

_UNEVEN = ("to_all", "toall", "gather", "scatter")  # in kinds in which ranks may contribute unequal parts
_EVEN = ("_all_gather_base", "_reduce_scatter_base")  # into, or out of, one tensor, which is cut into equal parts
_NUMBERS = ("time_created_ns", "collective_seq_id")
_FIELD_NAMES = {"kind": "operation", "sizes": "size", "dtypes": "dtype"}


@dataclass(frozen=True)
class Entry:
    """One collective as one rank issued it.  created_ns: wall clock; backend: each of a group counts its own; queued:
    its device was known not to have come to it; even: ranks must contribute equal parts, though its kind does not say
    so; before_ns: when the last operation of a group of this name before it was issued, 0 if none is known."""

    group: str
    number: int  # of the group's collectives, the same on all its ranks
    kind: str
    sizes: str
    dtypes: str
    created_ns: int
    ended: bool
    backend: str = ""
    queued: bool = False
    even: bool = False
    before_ns: int = 0


@dataclass(frozen=True)
class Pending:
    """A collective that is in flight on some rank, or an operation between two ranks, whose number is -1.

    queued: ranks that have issued it and whose device has not come to it, as far as is known; missing: members that
    have not issued it; unknown: members that reported nothing; mismatch: what the ranks disagree
    about; created_ns: when the first rank issued it.
    """

    group: str
    number: int
    kind: str
    members: tuple[int, ...]
    arrived: tuple[int, ...]
    waiting: tuple[int, ...]
    missing: tuple[int, ...]
    unknown: tuple[int, ...]
    mismatch: str
    created_ns: int
    queued: tuple[int, ...] = ()


def dumped_entries(texts: Iterable[str]) -> list[Mapping[str, Any]]:
    """The entries of dumps as torch writes them, oldest first; nothing of a text that is no dump."""
    told = [each for text in texts for each in _entries(text) if _is_entry(each)]
    return sorted(told, key=lambda each: int(each["time_created_ns"]))


def _entries(text: str) -> list[Any]:
    try:
        entries = json.loads(text)["entries"]
    except (ValueError, RecursionError, LookupError, TypeError):
        return []
    return entries if isinstance(entries, list) else []


def _is_entry(told: Any) -> bool:
    """Whether it has the fields that are needed."""
    if not isinstance(told, dict) or any(type(told.get(name)) is not int for name in _NUMBERS):
        return False
    group = told.get("process_group")
    return isinstance(group, list) and bool(group) and isinstance(told.get("input_dtypes") or [], list)


def entries_of(texts: Iterable[str], ahead_ns: int = 0) -> list[Entry]:
    """The collectives in dumps of one rank, oldest first.  ahead_ns: what the wall clock of that host is ahead of this
    one's.

    A group that is made anew has the name and the numbers of the one before it, whose entries the recorder keeps: only
    those of the newest are told.
    """
    told, newest, before = dumped_entries(texts), dict[tuple[str, str], int](), dict[tuple[str, str], int]()
    for each in told:
        newest[_counted(each)] = max(newest.get(_counted(each), 0), _made(each))
    for each in told:
        if _made(each) < newest[_counted(each)]:
            before[_counted(each)] = int(each["time_created_ns"]) - ahead_ns
    return [
        _entry(each, ahead_ns, before.get(_counted(each), 0))
        for each in told
        if not each.get("is_p2p") and _made(each) == newest[_counted(each)]
    ]


def _counted(told: Mapping[str, Any]) -> tuple[str, str]:
    """The group and the backend among whose operations it is counted."""
    return str(told["process_group"][0]), str(told.get("profiling_name") or "").partition(":")[0]


def _made(told: Mapping[str, Any]) -> int:
    """Which of the backend's groups in its process, in the order in which they were made; 0 if it does not say."""
    number = told.get("pg_id")
    return number if type(number) is int else 0


def has_ended(told: Mapping[str, Any]) -> bool:
    """Whether the operation of an entry is over; gloo's recorder never updates the state."""
    return bool(told.get("retired")) or told.get("state") == "completed"


def is_in_flight(told: Mapping[str, Any]) -> bool:
    """Whether it is certainly in flight: the recorder never marks one send or recv of a batch as over."""
    return not has_ended(told) and (not told.get("is_p2p") or told.get("state") == "started")


def _entry(told: Mapping[str, Any], ahead_ns: int, before_ns: int) -> Entry:
    backend, _, kind = str(told.get("profiling_name") or "").partition(":")
    group, number = str(told["process_group"][0]), int(told["collective_seq_id"])
    sizes, dtypes = str(told.get("input_sizes") or ""), " ".join(map(str, told.get("input_dtypes") or [])).lower()
    created_ns = int(told["time_created_ns"]) - ahead_ns
    ended, even = has_ended(told), kind in _EVEN
    return Entry(group, number, kind, sizes, dtypes, created_ns, ended, backend, even=even, before_ns=before_ns)


def pending(by_rank: Mapping[int, Sequence[Entry]], groups: Mapping[str, Sequence[int]]) -> list[Pending]:
    """Collectives in flight, in the order of issue.  groups: name -> members, as ranks of the job."""
    issued: dict[tuple[str, str, int], dict[int, Entry]] = {}
    latest: dict[tuple[str, str, int], int] = {}
    anew = _made_anew(by_rank)
    for rank, entries in by_rank.items():
        of_older = {_of(each) for each in entries if each.created_ns <= anew.get(_of(each), 0)}
        for entry in (each for each in entries if _of(each) not in of_older):
            issued.setdefault((entry.group, entry.backend, entry.number), {})[rank] = entry
            of_rank = entry.group, entry.backend, rank
            latest[of_rank] = max(latest.get(of_rank, 0), entry.number)
    found = []
    for (group, backend, number), ranks in issued.items():
        waiting = tuple(sorted(rank for rank, entry in ranks.items() if not entry.ended))
        if not waiting:
            continue
        members = tuple(groups.get(group) or sorted(ranks))
        came = tuple(rank for rank in members if rank in ranks or latest.get((group, backend, rank), 0) >= number)
        missing = tuple(rank for rank in members if rank not in came and rank in by_rank)
        unknown = tuple(rank for rank in members if rank not in came and rank not in by_rank)
        kind, created_ns = ranks[waiting[0]].kind, min(entry.created_ns for entry in ranks.values())
        queued = tuple(rank for rank in waiting if ranks[rank].queued)
        about = _mismatch(ranks)
        found.append(Pending(group, number, kind, members, came, waiting, missing, unknown, about, created_ns, queued))
    return sorted(found, key=lambda each: each.created_ns)


def _of(entry: Entry) -> tuple[str, str]:
    return entry.group, entry.backend


def _made_anew(by_rank: Mapping[int, Sequence[Entry]]) -> dict[tuple[str, str], int]:
    """Group and backend -> since when there is a newer group of that name, by the ranks that have issued something in
    it.  All its members met when it was made: of one that issued something before, all is of the older group."""
    anew: dict[tuple[str, str], int] = {}
    for entry in (each for entries in by_rank.values() for each in entries):
        anew[_of(entry)] = max(anew.get(_of(entry), 0), entry.before_ns)
    return anew


def _mismatch(ranks: Mapping[int, Entry]) -> str:
    """`operation: all_reduce on ranks 0-2, broadcast on rank 3`, or ""."""
    comparable = not any(part in entry.kind for entry in ranks.values() if not entry.even for part in _UNEVEN)
    for what in ("kind", "sizes", "dtypes") if comparable else ("kind",):
        by_value: dict[str, list[int]] = {}
        for rank, entry in sorted(ranks.items()):
            by_value.setdefault(getattr(entry, what), []).append(rank)
        if len(by_value) > 1:
            told = (f"{value or 'none'} on {title(who)}" for value, who in by_value.items())
            return f"{_FIELD_NAMES[what]}: {', '.join(told)}"
    return ""
