"""What the rules of `probe why` judge: the tables of a job, and the steps for which it was watched.

Made by probe.diagnose.watch.  Invariant: figures are of whole steps without evals, and what is unknown is absent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ..errors import SilentError
from ..host.facts import Facts
from ..query.result import Result
from .ratio import sure_above
from .rule import Tables

PHASES = ("data", "forward", "backward", "validation", "optimizer", "comm", "other")
BLOCK = 10  # steps that are sampled together, and whose mean counts as one value
LEAST_BLOCKS = 4
LEAST_STEPS = LEAST_BLOCKS * BLOCK  # fewer tell of no phase how long it takes
SAMPLED = ("forward", "validation", "other")  # phases that are known of sampled steps only
_STEPS = (
    f"SELECT rank, step, duration, sampled, samples, {', '.join(f'{name}_duration AS {name}' for name in PHASES)} "
    "FROM python.step_trace WHERE {window} AND duration IS NOT NULL AND COALESCE(eval_duration, 0) = 0"
)


@dataclass(frozen=True)
class Phase:
    """A phase of the step.  seconds: mean over steps and ranks; low, high: its 95 % interval; share: of the step, 0 to
    1; share_low: the least that the share may well be."""

    seconds: float
    low: float
    high: float
    share: float
    share_low: float

    def sure(self, threshold: float) -> float:
        """How sure it is that the share exceeds this, 0 to 1."""
        return sure_above(self.share, (self.share - self.share_low) / 1.96, threshold)

    def scaled(self, factor: float) -> Phase:
        """So much of it."""
        return Phase(*(factor * value for value in (self.seconds, self.low, self.high, self.share, self.share_low)))


class Watched:
    """The tables of a job, and the steps watched.

    window: those steps, as a condition for SQL; why_not_profiled: why python.profile has no rows of them, or '';
    read(expression): what an expression is in the job, as Python shows it, None if it cannot be told; it holds the
    training up for a moment; elsewhere(expression): likewise, on a rank of each further host; is_whole:
    whether that is all that was to be watched; kept: what rules remember from one look to the next.
    """

    def __init__(
        self, tables: Tables, first: int, last: int, seconds: float = 0.0, *, why_not_profiled: str = "",
        read: Callable[[str], str | None] = lambda expression: None,
        elsewhere: Callable[[str], Sequence[str | None]] = lambda expression: (), is_whole: bool = True,
        kept: dict[Any, Any] | None = None,
    ) -> None:  # fmt: skip
        self._tables, self.endpoint, self.first, self.last, self.seconds = tables, tables.endpoint, first, last, seconds
        self.notes: list[str] = []
        self.why_not_profiled, self.is_whole = why_not_profiled, is_whole
        self.read, self.elsewhere = read, elsewhere
        self.kept: dict[Any, Any] = {} if kept is None else kept
        self._results: dict[str, Result] = {}

    @property
    def window(self) -> str:
        return f"step BETWEEN {self.first} AND {self.last}"

    @property
    def agents(self) -> list[Facts]:
        return self._tables.agents

    def query(self, sql: str) -> Result:
        """As Connection.query; the same question is asked once."""
        sql = sql.replace("{window}", self.window)
        if sql not in self._results:
            self._results[sql] = self._tables.query(sql)
        return self._results[sql]

    def now(self, sql: str) -> list[dict[str, Any]]:
        """Rows that are asked for anew each time: of a table that shows the moment."""
        return self._tables.query(sql.replace("{window}", self.window)).to_pylist()

    def rows(self, sql: str) -> list[dict[str, Any]]:
        return self.query(sql).to_pylist()

    @property
    def ranks(self) -> list[int]:
        """Those with steps."""
        return sorted({row["rank"] for row in self._steps})

    @cached_property
    def missing(self) -> tuple[int, ...]:
        """Those that did not answer, and whose memory was not read instead."""
        coverage = self.query(_STEPS).coverage
        return tuple(rank for rank in coverage.silent if rank not in coverage.read)

    @property
    def steps(self) -> int:
        """How many whole steps were seen."""
        return len({row["step"] for row in self._steps})

    def sampled(self, *, known: bool = False) -> set[int]:
        """The steps of which module calls were recorded.  known: only those whose rows are still there."""
        return {row["step"] for row in self._steps if row["sampled"] and (row["other"] is not None or not known)}

    @cached_property
    def step_s(self) -> float:
        """The mean step, over all steps and ranks.  Raises SilentError without steps."""
        if not self._steps:
            raise SilentError("No whole step has been seen.", f"Run: probe {self.endpoint} hang", "few-steps")
        return float(np.mean([row["duration"] for row in self._steps]))

    @cached_property
    def usual_step_s(self) -> float:
        """The median step, which a few slow ones do not change.  Raises SilentError without steps."""
        return float(np.median([row["duration"] for row in self._steps])) if self._steps else self.step_s

    @cached_property
    def samples_a_second(self) -> float | None:
        """Of all ranks together; None where no tensor was seen."""
        known = [row for row in self._steps if row["samples"] is not None]
        seconds = sum(row["duration"] for row in known)
        return len(self.ranks) * sum(row["samples"] for row in known) / seconds if seconds else None

    @cached_property
    def phases(self) -> Mapping[str, Phase]:
        """The phases of the mean step by name, see PHASES; one with too few steps that tell it is absent."""
        made = {name: self._phase(name) for name in PHASES}
        return {name: phase for name, phase in made.items() if phase is not None}

    def phase(self, name: str) -> Phase:
        """Raises SilentError if it is not known of enough steps."""
        return self._known(name, self.phases.get(name), name in SAMPLED)

    @cached_property
    def _steps(self) -> list[dict[str, Any]]:
        return self.rows(_STEPS)

    def part(self, name: str, rows: Iterable[Mapping[str, Any]], *, sampled: bool = True) -> Phase:
        """What is no phase, as one: rows tell its `seconds` by rank and step, None if they are not known, so that the
        step is left out; steps without a row have none of it.

        sampled: only sampled steps tell it; what recording adds to these is taken off in proportion.  Raises
        SilentError if they are too few.
        """
        told = {(row["rank"], row["step"]): row["seconds"] for row in rows}
        steps = [row for row in self._steps if row["sampled"] or not sampled]
        all_told = ((row["step"], told.get((row["rank"], row["step"]), 0.0), row["duration"]) for row in steps)
        made = _over_blocks((step, seconds, whole) for step, seconds, whole in all_told if seconds is not None)
        phase = self._known(name, made, sampled)
        factor = phase.share * self.step_s / phase.seconds if phase.seconds else 1.0
        return replace(phase, seconds=factor * phase.seconds, low=factor * phase.low, high=factor * phase.high)

    def _phase(self, name: str) -> Phase | None:
        known = [row for row in self._steps if row[name] is not None and (row["sampled"] or name not in SAMPLED)]
        return _over_blocks((row["step"], row[name], row["duration"]) for row in known)

    def _known(self, name: str, phase: Phase | None, sampled: bool) -> Phase:
        if phase is None:
            message = f"Fewer than {LEAST_STEPS} {'sampled ' * sampled}steps tell how long {name} takes."
            raise SilentError(message, f"Watch for longer: probe {self.endpoint} why --seconds 120", "few-steps")
        return phase


def _over_blocks(steps: Iterable[tuple[int, float, float]]) -> Phase | None:
    """Of (step, seconds of the phase, seconds of the step); None with too few blocks of steps."""
    blocks: dict[int, list[tuple[float, float]]] = {}
    for step, seconds, duration in steps:
        blocks.setdefault(step // BLOCK, []).append((seconds, duration))
    if len(blocks) < LEAST_BLOCKS:
        return None
    sums = np.array([np.sum(block, axis=0) for block in blocks.values()])
    counts = np.array([len(block) for block in blocks.values()])
    mean, whole = sums.sum(axis=0) / counts.sum()
    # Of a ratio, by its linearization: how far each block is from what its steps should have taken.
    error = _error(sums[:, 0] - mean * counts, counts)
    share = mean / whole
    share_error = _error(sums[:, 0] - share * sums[:, 1], counts) / whole
    return Phase(
        float(mean),
        max(0.0, float(mean - 1.96 * error)),
        float(mean + 1.96 * error),
        float(share),
        float(share - 1.96 * share_error),
    )


def _error(residuals: Any, counts: Any) -> Any:
    """The standard error of a mean over blocks; with few blocks somewhat more, as Student's t has it."""
    blocks = len(residuals)
    small = 1 + 1.5 / (blocks - 1)
    return small * np.sqrt(np.sum(residuals**2) * blocks / (blocks - 1)) / counts.sum()
