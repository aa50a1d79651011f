"""A rank that the others wait for in every step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median

from ....errors import SilentError
from ...lateness.statistics import TOLERATED
from ...lateness.stragglers import STEPS, Straggler, stragglers
from ...measures.places import EXPLAINS, Place, Places, places
from ...rule import Finding, Rule
from ...watched import Watched

_OTHERS = 3  # ranks to compare a late one with: each takes a query of the profile
_SQL = (
    "SELECT rank, AVG(duration - comm_duration) AS own_s, AVG(data_duration) AS data_s, AVG(comm_duration) AS comm_s "
    "FROM python.step_trace WHERE {window} GROUP BY rank ORDER BY own_s DESC"
)


def _find(watched: Watched) -> Iterator[Finding]:
    found = stragglers(watched, STEPS, lambda _, ranks, rank: _function(watched, ranks, rank))
    for each, finding in zip(found.late, found.findings, strict=True):
        place = _function(watched, [one.late.rank for one in found.ranks], each.late.rank)
        sentence = f"Straggler: {finding.sentence[0].lower()}{finding.sentence[1:]}"
        yield replace(finding, sentence=sentence, where=place, remedy=_remedy(each, place))


def _function(watched: Watched, ranks: Sequence[int], rank: int) -> str:
    """Where the rank is more often than others, by the profile; '' if that is not known."""
    others = [other for other in ranks if other != rank][:_OTHERS]
    try:
        own, *rest = (places(watched, f"rank = {each}") for each in (rank, *others))
    except SilentError:
        return ""
    place = _more_often(own, rest)
    return "" if place is None else str(place)


def _more_often(own: Places, others: Sequence[Places]) -> Place | None:
    """The innermost function that takes a larger share of the time here than of the others' (the median of them), by
    most of the largest such difference."""
    there = [{place.function: place.share for place in other.functions()} for other in others]
    more = {
        place: place.share - median(shares.get(place.function, 0.0) for shares in there) for place in own.functions()
    }
    worth = max(TOLERATED, EXPLAINS * max(more.values(), default=0.0))
    return next((place for place in reversed(more) if more[place] >= worth), None)


def _remedy(straggler: Straggler, place: str) -> str:
    rank, most = straggler.late.rank, next(iter(straggler.spends), "")
    if "for data" in most:
        return f"data of equal size on all ranks, or more workers for the loader of rank {rank}"
    if "for a core" in most:
        return f"less other work on the host of rank {rank}"
    return f"what rank {rank} does in {place}: on all ranks alike, or beside the training" if place else ""


STRAGGLER: Rule[Watched] = Rule(
    "straggler",
    "A rank does more of its own work in a step than the others, which wait for it.",
    _find,
    needs=("python.step_trace", "python.nccl_trace", "probe.collectives", "python.profile"),
    of=("communication-bound", "gpu-idle"),
    sql=_SQL,
)
