"""Where the training thread stands in a phase of the step, from the profile that was taken while the job was watched.

Called by rules.  Invariant: shares are of the time that the profile saw in that phase, and a place is named only if it
explains most of it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import SilentError
from ..watched import Watched

EXPLAINS = 0.8  # of the time: a cause that explains less is not told as the cause
_STACKS = (
    "SELECT rank, step, phase, holds_gil, stack, file, SUM(seconds) AS seconds FROM python.profile "
    "WHERE {{window}} AND stack IS NOT NULL AND {where} AND (thread IN (SELECT thread FROM python.profile "
    "WHERE phase IS NOT NULL) OR (thread IS NULL AND is_main)) GROUP BY ALL"
)
_CHANCE = 0.02  # of the time: samples at the edge of a function
_INSIDE = re.compile(r"(\.<locals>\.<\w+>)+$")  # comprehensions, lambdas
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3", "<")


@dataclass(frozen=True)
class Stack:
    """Where the training thread of a rank stood in a step, and for how long.

    frames: outermost first, each as `function (file:line)`; phase: as in python.profile; holds_gil: None if unknown.
    """

    frames: tuple[str, ...]
    seconds: float
    rank: int = 0
    step: int = 0
    phase: str | None = None
    holds_gil: bool | None = None

    def has(self, is_there: Callable[[str], bool]) -> bool:
        """Whether it has such a frame."""
        return any(map(is_there, self.frames))


@dataclass(frozen=True)
class Place:
    """A function of the job's own.  share: of the time asked about in which it was in the stack, 0 to 1; at: the line
    that it executed for most of that."""

    function: str
    at: str
    share: float

    def is_at(self, frame: str) -> bool:
        """Whether a frame is of this function."""
        return function_of(frame) == self.function

    def is_line(self, frame: str) -> bool:
        """Whether a frame stands at the line of this function."""
        return _split(frame) == (self.function, self.at)

    def __str__(self) -> str:
        return f"{self.function} ({self.at})"


class Places:
    """The stacks of the training threads while a condition on python.profile holds."""

    def __init__(self, stacks: Sequence[Stack], own: frozenset[str]) -> None:
        self.stacks, self._own = stacks, own
        self.seconds = sum(stack.seconds for stack in stacks)

    def share(self, is_there: Callable[[str], bool]) -> float:
        """Of the time, that with such a frame in the stack."""
        return self.within(is_there).seconds / self.seconds if self.seconds else 0.0

    def within(self, is_there: Callable[[str], bool]) -> Places:
        """Those with such a frame."""
        return self.where(lambda stack: stack.has(is_there))

    def where(self, is_so: Callable[[Stack], bool]) -> Places:
        """Those of which this is true."""
        return Places([stack for stack in self.stacks if is_so(stack)], self._own)

    def is_own(self, frame: str) -> bool:
        """Whether a frame is one of the job's own code."""
        return file_of(frame) in self._own

    def deepest(self, least: float = EXPLAINS) -> Place | None:
        """The innermost function of the job's own that takes at least this share of the time."""
        return max(self._found(least, self.is_own), key=lambda found: found[0], default=(0.0, None))[1]

    def outermost(self, apart_from: Places, least: float = EXPLAINS) -> Place | None:
        """The outermost function of the job's own that takes at least this share, and none of the others' time; one of
        a library if that does it all, as a trainer does, and rather one that users know."""
        for is_of in (self.is_own, _is_public, lambda frame: True):
            apart = [each for each in self._found(least, is_of) if apart_from.share(each[1].is_at) < _CHANCE]
            if apart:
                return min(apart, key=lambda found: found[0])[1]
        return None

    def innermost(self, apart_from: Places) -> Place | None:
        """The deepest function of the job's own, or that of a trainer if all else is called by the same line of it."""
        place = self.deepest()
        is_loop = place is not None and apart_from.share(place.is_line) >= EXPLAINS
        return (is_loop and self.outermost(apart_from)) or place

    def functions(self) -> list[Place]:
        """All functions of the job's own, outermost first."""
        return [place for _, place in sorted(self._found(0.0, self.is_own), key=lambda found: found[0])]

    def _found(self, least: float, is_of: Callable[[str], bool]) -> list[tuple[float, Place]]:
        """Functions that take so much, each with its mean depth."""
        return [
            (depth / seconds, Place(function, max(lines, key=lambda line: lines[line]), seconds / self.seconds))
            for function, (seconds, depth, lines) in self._functions(is_of).items()
            if seconds >= least * self.seconds
        ]

    def _functions(self, is_of: Callable[[str], bool]) -> dict[str, tuple[float, float, dict[str, float]]]:
        """Function -> its time, depth times time, time by file and line."""
        found: dict[str, tuple[float, float, dict[str, float]]] = {}
        for stack in self.stacks:
            for depth, frame in {_split(frame)[0]: (depth, frame) for depth, frame in enumerate(stack.frames)}.values():
                function, at = _split(frame)
                if is_of(frame):
                    seconds, weighted, lines = found.get(function, (0.0, 0.0, {}))
                    lines[at] = lines.get(at, 0.0) + stack.seconds
                    found[function] = seconds + stack.seconds, weighted + depth * stack.seconds, lines
        return found


def places(watched: Watched, where: str = "true") -> Places:
    """where: a condition on python.profile, such as `phase = 'data'`.  Raises SilentError without a profile."""
    if watched.why_not_profiled:
        raise SilentError(f"No profile: {watched.why_not_profiled}.", code="no-profile")
    rows = watched.rows(_STACKS.format(where=where))
    own = frozenset(os.path.basename(row["file"]) for row in rows if not is_library(row))
    named = ("seconds", "rank", "step", "phase", "holds_gil")
    return Places([Stack(tuple(row["stack"]), **{name: row[name] for name in named}) for row in rows], own)


def file_of(frame: str) -> str:
    """`train.py` of `build (train.py:41)`, `torch/serialization.py` of a library's frame."""
    return _split(frame)[1].rpartition(":")[0]


def _is_public(frame: str) -> bool:
    return not function_of(frame).rpartition(".")[2].startswith("_")


def is_library(row: dict[str, Any]) -> bool:
    """Whether the file of a row of python.profile is no code of the job's own."""
    return any(part in row["file"] for part in _LIBRARIES)


def function_of(frame: str) -> str:
    """`build` of `build (train.py:41)`, `main.<locals>.build (train.py:41)` and of a comprehension in it."""
    return _split(frame)[0]


def _split(frame: str) -> tuple[str, str]:
    """`build (train.py:41)` as function and place."""
    function, _, at = frame.rpartition(" (")
    return _INSIDE.sub("", function).rpartition("<locals>.")[2], at.removesuffix(")")
