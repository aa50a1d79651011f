"""One look at who holds which tensor, in pieces if it takes long: all tensors, then who holds what no root leads to.

Run by tensors.py, on the training thread at a boundary, or on the agent's thread where none comes.  Invariant: between
two pieces, and after the last, nothing here refers to an object of the job's, whatever was raised.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable
from time import thread_time
from types import FrameType
from typing import Any

from ... import protocol as wire
from ..inspect.classes import loaded
from .blocks import allocated_bytes, claim_blocks
from .places import Places
from .referrers import Referrers
from .storages import Storage
from .survey import Known, Survey

# Of a piece, in CPU time of the thread: the training waits meanwhile.  On a busy machine that takes longer, but what
# there is to see does not depend on it.
_WHOLE_S = 0.16
_REST_S = 0.06  # thereof, for finding the tensors that no reference of the user's leads to
_MOST_STORAGES = 20_000  # told one by one; the smallest of more are left out


class Look:
    """piece() at one boundary after the other until it says that this was the last; then told()."""

    def __init__(self) -> None:
        self._known, self._places = Known(), Places()
        self._rows: dict[int, Storage] = {}
        self._allocated: dict[str, int] = {}  # when the rows were found
        self._graphs_are_read = False
        self._referrers: Referrers | None = None
        self._walked = 0
        self._pauses_gc = False

    @property
    def is_listing(self) -> bool:
        """Whether the next piece lists all tensors anew; later ones only look for their holders."""
        return self._referrers is None

    def piece(self, frame: FrameType | None) -> bool:
        """frame: the driving loop's, at a boundary; None where the job goes on meanwhile: then neither gradients nor
        graphs are read, because a backward pass may be changing them, and the garbage collector is left alone, for
        the job may fork, or turn it on or off itself."""
        until, self._pauses_gc = thread_time() + _WHOLE_S, frame is not None and gc.isenabled()
        if self._pauses_gc:  # what a collection would run is code of the job's
            gc.disable()
        try:
            with loaded("torch")._C.DisableTorchFunction():
                return self._survey(frame, until) if self._referrers is None else self._referrers.climb(until, set())
        finally:
            self.resume_gc()

    def resume_gc(self) -> None:
        """Also in a child that another thread has forked amid a piece: there is no thread that would end it there."""
        if self._pauses_gc:
            gc.enable()
            self._pauses_gc = False

    def told(self) -> dict[str, Any]:
        """The fields of `listed` that tell what was found."""
        freed = {row.key for row in self._referrers.gone} if self._referrers is not None else set()
        rows = sorted((row for key, row in self._rows.items() if key not in freed), key=lambda row: -row.bytes)
        kept, left = rows[:_MOST_STORAGES], rows[_MOST_STORAGES:]
        return {
            "storages": {name: [getattr(row, name) for row in kept] for name in wire.LISTED_COLUMNS},
            "places": [list(each) for each in self._places.rows],
            "left_bytes": _by_device(left),
            "left_storages": len(left),
            "unseen": sorted(self._known.unseen | self._left_over()),
            "walked": self._walked,
            "allocated": self._allocated,
        }

    def _left_over(self) -> set[str]:
        """What a look has not come to that was ended early."""
        return set() if self._graphs_are_read else {wire.UNSEEN_NODES}

    def _survey(self, frame: FrameType | None, until: float) -> bool:
        """A piece that looks at all tensors anew, and goes on with the graphs where the one before has ended."""
        survey = Survey(frame, self._places, self._known)
        try:
            done = self._seen(survey, until)
            survey.place()
            self._allocated = allocated_bytes()
            return done
        finally:
            self._rows, self._walked = survey.storages.found, survey.walk.walked
            survey.forget()

    def _seen(self, survey: Survey, until: float) -> bool:
        begun_with_rest = self._graphs_are_read
        if not survey.follow():
            return False
        self._graphs_are_read = survey.read_graphs(until - _REST_S) or begun_with_rest
        if not self._graphs_are_read or (thread_time() + _REST_S > until and not begun_with_rest):
            return False
        begun, sought = thread_time(), survey.rest()
        search_s = thread_time() - begun
        claim_blocks(survey.storages.found, self._places)
        self._referrers = Referrers(survey.roots, self._places, not survey.walk.is_cut, search_s)
        self._referrers.begin(sought)
        return self._referrers.climb(until, survey.own_ids(sought))


def _by_device(rows: Iterable[Storage]) -> dict[str, int]:
    found: dict[str, int] = {}
    for row in rows:
        found[row.device] = found.get(row.device, 0) + row.bytes
    return found
