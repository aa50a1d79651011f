"""Which evals changed something in the job, and from which step on that was in effect.

Called by change.py, on probe.evals; `probe set` leaves no row there, it changes only what is recorded.
What an eval assigned to a loader is in effect from the loader's next iterator on, which is the next epoch.  Invariant:
a change that was not in effect yet when the next one was made is one change with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..rule import Tables
from .effects import effects, loaders_of

_AT_ONCE = 10  # steps by which ranks differ that run a snippet beside the training: it is the same change
Row = dict[str, Any]


@dataclass(frozen=True)
class Made:
    """A change.  first, last: the steps at which it was made; codes: the snippets, () if a step was named that has
    none; loaders: those that it changed; effect: the step in which it took effect on all ranks, None if not yet."""

    first: int
    last: int
    codes: tuple[str, ...]
    changed: tuple[str, ...]
    loaders: tuple[str, ...]
    effect: int | None

    def was_in_effect(self, step: int) -> bool:
        return self.effect is not None and self.effect < step

    def step_before(self, step: int) -> int:
        """The last step before `step` that this change divides from those after it."""
        return self.effect if self.effect is not None and self.effect < step else self.last


class Changes:
    """The changes made in a job so far."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        sql = (
            "SELECT rank, step, start_ns, code, ok, changed FROM probe.evals WHERE step IS NOT NULL ORDER BY step, time"
        )
        rows = [{**row, "effects": effects(row["code"], row["changed"] or [], row["ok"])} for row in tables.query(sql)]
        self._rows = [row for row in rows if row["effects"]]

    def last(self) -> Made | None:
        """The newest one, None if there is none."""
        return self.at(self._rows[-1]["step"]) if self._rows else None

    def at(self, step: int) -> Made:
        """The one at this step, whether an eval made it or something that left no row."""
        rows = [row for row in self._rows if row["step"] == step]
        codes = {row["code"] for row in rows}
        rows = [row for row in self._rows if row["code"] in codes and abs(row["step"] - step) < _AT_ONCE]
        made = self._made(rows) if rows else Made(step, step, (), (), (), step)
        while rows and (earlier := self.before(made)) is not None and not earlier.was_in_effect(made.first):
            rows = [row for row in self._rows if earlier.first <= row["step"] <= made.last]
            made = self._made(rows)
        return made

    def before(self, made: Made) -> Made | None:
        """The one before, None if there is none."""
        rows = [row for row in self._rows if row["step"] < made.first]
        return self._made([row for row in rows if row["code"] == rows[-1]["code"]
                           and rows[-1]["step"] - row["step"] < _AT_ONCE]) if rows else None  # fmt: skip

    def step_after(self, made: Made) -> int | None:
        """The step of the one after."""
        return next((row["step"] for row in self._rows if row["step"] > made.last), None)

    def _made(self, rows: Sequence[Row]) -> Made:
        changed = tuple(dict.fromkeys(each for row in rows for each in row["effects"]))
        loaders = tuple(loaders_of(changed, self._workers))
        first, last = rows[0]["step"], rows[-1]["step"]
        effect = self._began(rows, loaders) if loaders else last
        return Made(first, last, tuple(dict.fromkeys(row["code"] for row in rows)), changed, loaders, effect)

    @cached_property
    def _workers(self) -> dict[str, int]:
        """Of each loader, before anything was changed."""
        sql = "SELECT loader, MIN_BY(num_workers, step) AS workers FROM python.dataloader_trace GROUP BY loader"
        return {row["loader"]: row["workers"] or 0 for row in self._tables.query(sql)}

    def _began(self, rows: Iterable[Row], loaders: Iterable[str]) -> int | None:
        """The step in which the last of the ranks made its first iterator of such a loader after the change."""
        since = {row["rank"]: row["start_ns"] for row in rows}
        began = {row["rank"]: row["step"] for row in reversed(epochs(self._tables, loaders))
                 if row["start_ns"] > since.get(row["rank"], row["start_ns"])}  # fmt: skip
        return max(began.values()) if began.keys() == since.keys() else None


def epochs(tables: Tables, loaders: Iterable[str]) -> list[Row]:
    """The starts of all epochs of these: rank, step, start_ns; in order."""
    names = ", ".join("'" + name.replace("'", "''") + "'" for name in loaders)
    sql = f"SELECT rank, step, start_ns FROM python.iterator_trace WHERE loader IN ({names}) AND NOT in_eval"
    return list(tables.query(f"{sql} ORDER BY start_ns"))
