"""One run of a side: which of its steps count, and each of its figures as a series over them.

Made by compare.py, on the tables as a user would query them.  Invariant: a series has no unknown value, and no step of
the warm-up; where too little is known, it is short or absent.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ...errors import SilentError
from ..change.blocks import LEAST_STEPS, Values
from ..change.steps import PHASES, Steps, settling, steps_of, whole
from ..rule import Tables

_ENDLESS = 1 << 62
# The layers of a model are one figure: numbers in a name become *, and modules of one class there are added up.
_FOLDED = (
    r"COALESCE(CASE WHEN regexp_matches(module, '\d') THEN regexp_replace(module, '\d+', '*', 'g') || ' (' || "
    "module_type || ')' ELSE module END, '(no module)') || ' ' || stage"
)
_PARTS = {
    "modules": (
        _FOLDED, "duration", "python.torch_trace",
        "stage IN ('forward', 'backward', 'step') AND (stage <> 'forward' OR (training AND grad))",
    ),
    "collectives": (
        "operation_type || COALESCE(' (' || source || ')', '')", "duration_ms / 1e3", "python.nccl_trace",
        "state = 'done'",
    ),
}  # fmt: skip  # name, seconds, table, condition
# A step of which not all calls were timed is NULL: the sum of the others would be too small.
_OF_STEPS = (
    "SELECT step, {name} AS name, CASE WHEN COUNT(*) = COUNT({seconds}) THEN SUM({seconds}) / {ranks} END AS seconds "
    "FROM {table} WHERE step BETWEEN {first} AND {last} AND NOT in_eval AND {condition} GROUP BY ALL"
)
_DEVICES = (
    "SELECT step, MAX(allocated_mb) AS allocated_mb, MAX(reserved_mb) AS reserved_mb, MAX(peak_mb) AS peak_mb "
    "FROM python.memory_trace WHERE step BETWEEN {first} AND {last} AND allocated_mb IS NOT NULL GROUP BY ALL "
    "ORDER BY step"
)
_WAITS = (
    "SELECT AVG(LEAST(core_wait_pct, 100)) / 100 AS waits FROM host.process_trace WHERE step BETWEEN {first} AND {last}"
)
KINDS = tuple(_PARTS)


@dataclass(frozen=True)
class Run:
    """A run to compare: tables answers SQL as a Connection does; steps: the first and the last that count, None for
    all; settings: what its recording says of it, such as the command line.

    Example: `compare([Run(job, (100, 400))], [Run(job, (500, 800))])`
    """

    tables: Tables
    steps: tuple[int, int] | None = None
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.tables.endpoint + ("@{}..{}".format(*self.steps) if self.steps else "")


class Seen:
    """What was seen of a run.  left_out: steps at its start in which it settled; ranks: how many there are.

    Raises SilentError without enough steps.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        first, last = run.steps or (0, _ENDLESS)
        (found,) = whole(steps_of(run.tables, first, last))
        self.left_out = settling(found["duration"])
        self.steps: Steps = {name: values[self.left_out :] for name, values in found.items()}
        if (count := len(self.steps["step"])) < LEAST_STEPS:
            raise SilentError(
                f"Of {run.name} {count} steps can be compared; {LEAST_STEPS} are needed.",
                "Name more steps, or let the job go on.", "few-steps",
            )  # fmt: skip
        self.ranks = int(found["ranks"].max())
        self._within = {"first": int(self.steps["step"][0]), "last": int(self.steps["step"][-1]), "ranks": self.ranks}

    @property
    def first(self) -> int:
        return self._within["first"]

    @property
    def last(self) -> int:
        return self._within["last"]

    @property
    def step_s(self) -> float:
        """The mean step."""
        return float(self.steps["duration"].mean())

    def phases(self) -> dict[str, Values]:
        """Seconds of a step by phase, over the steps of which it is known."""
        return {name: _known(self.steps[name]) for name in PHASES}

    @cached_property
    def parts(self) -> dict[str, dict[str, float]]:
        """By kind and name the seconds of a mean step, of everything that ran, averaged over the ranks."""
        return {kind: self._means(kind) for kind in KINDS}

    def _means(self, kind: str) -> dict[str, float]:
        """Over the steps of which each is known."""
        steps = self.steps["step"][self._told(kind)]
        rows = self._query(
            "SELECT name, SUM(seconds) AS seconds, COALESCE(LIST(step) FILTER (seconds IS NULL), []) AS unknown "
            f"FROM ({self._of_steps(kind)}) GROUP BY name HAVING COUNT(seconds) > 0"
        )
        return {row["name"]: row["seconds"] / max(1, int((~np.isin(steps, row["unknown"])).sum())) for row in rows}

    def series(self, kind: str, names: Collection[str]) -> dict[str, Values]:
        """Seconds of a step by name, over those of which it is known; a step in which it did not run has none of it."""
        steps = self.steps["step"][self._told(kind)]
        found = np.zeros((len(names), len(steps)))
        listed = ", ".join("'{}'".format(name.replace("'", "''")) for name in names) or "NULL"
        rows = self._query(
            f"SELECT list_position([{listed}], name) - 1 AS place, step, seconds FROM ({self._of_steps(kind)}) "
            f"WHERE name IN ({listed})"
        ).table
        place, step, seconds = (_numbers(rows[column]) for column in ("place", "step", "seconds"))
        here = np.isin(step, steps)
        found[place[here].astype(np.int64), np.searchsorted(steps, step[here])] = seconds[here]
        return {name: _known(values) for name, values in zip(names, found, strict=True)}

    def memory(self) -> dict[str, Values]:
        """MB by name: of the rank that holds most, at each step at which it was read."""
        rows = self._query(_DEVICES.format(**self._within)).table
        names = ("allocated_mb", "reserved_mb", "peak_mb")
        devices = {name: _numbers(rows[name]) for name in names if len(rows)}
        return {"rss_mb": _known(self.steps["rss_mb"])} | {name: _known(each) for name, each in devices.items()}

    @cached_property
    def waits(self) -> float:
        """The share of the time, 0 to 1, in which the main threads of its ranks waited for a core; 0 if unknown."""
        (row,) = self._query(_WAITS.format(**self._within))
        return float(row["waits"] or 0.0)

    def _told(self, kind: str) -> Values:
        """Which steps tell of such parts."""
        return self.steps["sampled"] > 0 if kind == "modules" else ~np.isnan(self.steps["comm"])

    def _of_steps(self, kind: str) -> str:
        name, seconds, table, condition = _PARTS[kind]
        return _OF_STEPS.format(name=name, seconds=seconds, table=table, condition=condition, **self._within)

    def _query(self, sql: str) -> Any:
        return self.run.tables.query(sql)


def _numbers(column: Any) -> Values:
    """Of an Arrow column; NaN where it is NULL."""
    return np.asarray(column.to_numpy(), np.float64)


def _known(values: Values) -> Values:
    return values[~np.isnan(values)]
