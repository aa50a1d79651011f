"""What is run in a job, and what it did on one rank.

Made by probe.control, probe.capture and probe.evals.  Invariant: plain data, and what is read out of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import EvalError

OnOutput = Callable[[list[int], str, str], None]
EvalResult = list["RankResult"]


@dataclass(frozen=True)
class RankResult:
    """What a snippet did on one rank; an EvalResult is a list of these, by rank.

    step: the job's steps completed when it ran, None if it ran at once; held_s: for how long training waited; output:
    all it printed; echo: repr of a last expression, None if there is none; ran: whether it began.

    Example: `[(each.rank, each.echo) for each in job.eval("loss.item()")]`
    """

    rank: int
    ok: bool
    output: str
    echo: str | None
    error: str | None
    traceback: str | None
    step: int | None
    held_s: float
    changed: list[str] = field(default_factory=list)
    dropped_bytes: int = 0
    ran: bool = True

    @classmethod
    def of(cls, rank: int, done: Mapping[str, Any], output: str, step: int | None) -> RankResult:
        """done: what the rank has told at the end."""
        return cls(
            rank, done["ok"], output, done.get("echo"), done.get("error"), done.get("traceback"), step,
            held_s=(done.get("held_ns") or 0) / 1e9, changed=done.get("changed") or [],
            dropped_bytes=done.get("dropped_bytes") or 0, ran=done.get("ran", True),
        )  # fmt: skip


@dataclass(frozen=True)
class Snippet:
    """What to run and how, as the agents get it.  ranks: those that are to run it, None for the whole job; frame: the
    function, or the number of the frame, whose variables it sees; names: tell names of this pattern, and run nothing;
    capture: begin one (steps, shapes), and run nothing."""

    code: str
    filename: str
    now: bool
    timeout: float | None
    write: bool
    by: str
    ranks: Sequence[int] | None
    frame: str = ""
    names: str | None = None
    capture: Mapping[str, Any] | None = None


def told_names(results: EvalResult) -> list[dict[str, Any]]:
    """The names that the first rank has told, with the step in which it did.  Raises EvalError if it has not."""
    if not results or results[0].echo is None:
        raise EvalError(results[0].error or "No names." if results else "No names.", code="eval")
    return [{**name, "step": results[0].step} for name in json.loads(results[0].echo)]


def losses(results: EvalResult) -> list[str]:
    """What of their output did not come, in lines."""
    return [f"rank {each.rank}: {each.dropped_bytes} bytes of output were dropped" for each in results
            if each.dropped_bytes]  # fmt: skip
