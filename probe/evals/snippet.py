"""What is run in a job, and what it did on one rank.

Made by probe.connection and probe.evals.  Invariant: plain data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

OnOutput = Callable[[list[int], str, str], None]
EvalResult = list["RankResult"]


@dataclass(frozen=True)
class RankResult:
    """What a snippet did on one rank; an EvalResult is a list of these, by rank.

    step: the job's steps completed when it ran, None if it ran at once; held_s: for how long training waited; output:
    all it printed; echo: repr of a last expression, None if there is none.

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


@dataclass(frozen=True)
class Snippet:
    """What to run and how, as the agents get it.  ranks: those that are to run it, None for the whole job."""

    code: str
    filename: str
    now: bool
    timeout: float | None
    write: bool
    by: str
    ranks: list[int] | None


def losses(results: EvalResult) -> list[str]:
    """What of their output did not come, in lines."""
    return [f"rank {each.rank}: {each.dropped_bytes} bytes of output were dropped" for each in results
            if each.dropped_bytes]  # fmt: skip
