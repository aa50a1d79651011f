"""Where the training thread stands in a phase of the step, from the profile that was taken while the job was watched.

Called by rules.  Invariant: shares are of the time that the profile saw in that phase, and a place is named only if it
explains most of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import SilentError
from .watched import Watched

EXPLAINS = 0.8  # of the time: a cause that explains less is not told as the cause
_STACKS = (
    "SELECT stack, function, file, line, SUM(seconds) AS seconds FROM python.profile "
    "WHERE {{window}} AND stack IS NOT NULL AND {where} AND (thread IN (SELECT thread FROM python.profile "
    "WHERE phase IS NOT NULL) OR (thread IS NULL AND is_main)) GROUP BY ALL"
)
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3", "<")


@dataclass(frozen=True)
class Stack:
    """Frames, outermost first, each as `function (file:line)`, and the time for which the thread stood there."""

    frames: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class Place:
    """A function of the job's own.  share: of the time asked about in which it was in the stack, 0 to 1; at: the line
    that it executed for most of that."""

    function: str
    at: str
    share: float

    def __str__(self) -> str:
        return f"{self.function} ({self.at})"


class Places:
    """The stacks of the training threads while a condition on python.profile holds."""

    def __init__(self, stacks: Sequence[Stack], own: frozenset[str]) -> None:
        self._stacks, self._own = stacks, own
        self.seconds = sum(stack.seconds for stack in stacks)

    def share(self, is_there: Callable[[str], bool]) -> float:
        """Of the time, that with such a frame in the stack."""
        found = sum(stack.seconds for stack in self._stacks if any(map(is_there, stack.frames)))
        return found / self.seconds if self.seconds else 0.0

    def within(self, is_there: Callable[[str], bool]) -> Places:
        """Those with such a frame."""
        return Places([stack for stack in self._stacks if any(map(is_there, stack.frames))], self._own)

    def deepest(self, least: float = EXPLAINS) -> Place | None:
        """The innermost function of the job's own that takes at least this share of the time."""
        best: tuple[float, Place] | None = None
        for function, (seconds, depth, lines) in self._functions().items():
            if seconds >= least * self.seconds and (best is None or depth / seconds > best[0]):
                at = max(lines, key=lambda line: lines[line])
                best = depth / seconds, Place(function, at, seconds / self.seconds)
        return None if best is None else best[1]

    def functions(self) -> list[Place]:
        """All functions of the job's own, outermost first."""
        found = self._functions().items()
        return [
            Place(function, max(lines, key=lambda line: lines[line]), seconds / self.seconds)
            for function, (seconds, depth, lines) in sorted(found, key=lambda each: each[1][1] / each[1][0])
        ]

    def _functions(self) -> dict[str, tuple[float, float, dict[str, float]]]:
        """Function of the job's own -> its time, depth times time, time by file and line."""
        found: dict[str, tuple[float, float, dict[str, float]]] = {}
        for stack in self._stacks:
            for depth, frame in {_split(frame)[0]: (depth, frame) for depth, frame in enumerate(stack.frames)}.values():
                function, at = _split(frame)
                if at.rpartition(":")[0] in self._own:
                    seconds, weighted, lines = found.get(function, (0.0, 0.0, {}))
                    lines[at] = lines.get(at, 0.0) + stack.seconds
                    found[function] = seconds + stack.seconds, weighted + depth * stack.seconds, lines
        return found


def places(watched: Watched, where: str = "true") -> Places:
    """where: a condition on python.profile, such as `phase = 'data'`.  Raises SilentError without a profile."""
    if watched.why_not_profiled:
        raise SilentError(f"No profile: {watched.why_not_profiled}.", code="no-profile")
    rows = watched.rows(_STACKS.format(where=where))
    own = frozenset(os.path.basename(row["file"]) for row in rows if not _is_library(row))
    return Places([Stack(tuple(row["stack"]), row["seconds"]) for row in rows], own)


def _is_library(row: dict[str, Any]) -> bool:
    return any(part in row["file"] for part in _LIBRARIES)


def _split(frame: str) -> tuple[str, str]:
    """`build (train.py:41)` as function and place."""
    function, _, at = frame.rpartition(" (")
    return function, at.removesuffix(")")
