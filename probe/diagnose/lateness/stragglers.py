"""Which ranks keep the others waiting: how late each rank is over the last steps, and what it spends that time on.

Called by Connection.stragglers, whose tables it queries.  A rank's own work is its step minus the time for which
collectives held it: on the host the time it was blocked; on a device, whose operations wait there, their durations.
Invariant: all figures are of the same steps, those that every rank has recorded as a whole and no eval has held.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...errors import SilentError, UsageError
from ..rule import Finding, Tables
from .late_function import by_looks
from .statistics import Lateness, Seconds, above_others, excess, lateness

STEPS = 100  # looked at unless the caller says otherwise
LEAST_STEPS = 8
LEAST_SAMPLED = 5  # to tell forward from the rest
_PHASES = {
    "data": "waiting for data", "forward": "in forward", "backward": "in backward", "validation": "in validation",
    "optimizer": "in the optimizer", "other": "outside of all phases",
}  # fmt: skip
_CALLS = "forward", "validation"  # phases that are known in sampled steps only, in others they are in the rest
# NULL unless all calls were timed: where some were not, the rank with fewer of those would seem to take longer.
_TIMED = "CASE WHEN COUNT(*) = COUNT(duration) THEN SUM(duration) END AS seconds FROM python.torch_trace"
_IN_MODULE = "in module", f"module AS what, {_TIMED}"
_TRAINS = "training AND grad"
_PARTS = {
    "data": ("for", "loader AS what, SUM(wait_duration) AS seconds FROM python.dataloader_trace", "TRUE"),
    "forward": (*_IN_MODULE, f"stage = 'forward' AND {_TRAINS}"),
    "backward": (*_IN_MODULE, "stage = 'backward'"),
    "validation": (*_IN_MODULE, f"stage = 'forward' AND NOT ({_TRAINS})"),
}
_ON_DEVICE = (
    f"stage || ' of ' || module AS what, {_TIMED}",
    "device LIKE 'cuda%' AND stage <> 'comm'",
)
_WORTH = 0.2  # of a rank's lateness: smaller parts are left out
_CORE_PCT, _CORE_TIMES = 10.0, 2  # a rank waits for a core: so many points more, and so many times as long
_STILL_S, _STILL_STEPS = 5.0, 20  # without a step for so long and so many steps: the job may hang
Function = Callable[[Tables, Sequence[int], int], str]  # where the last of these ranks spends more time; '' if unknown


@dataclass(frozen=True)
class Straggler:
    """One rank: how late; last_pct: of the collectives, those at which it arrived last, None if unknown; spends: what
    it spends the time on, in lines; saves_s: how much shorter the mean step would be if it were no slower than the
    slowest other rank in that step."""

    late: Lateness
    last_pct: float | None
    spends: list[str] = field(default_factory=list)
    saves_s: float = 0.0


@dataclass(frozen=True)
class Stragglers:
    """How late each rank of a job is: what `Connection.stragglers` returns.

    ranks: the latest first; steps: how many were compared; step_s: duration of the median step.

    Example: `for each in connection.stragglers().late: print(each.late.rank, each.late.late_s, each.spends)`
    """

    ranks: list[Straggler]
    steps: int
    step_s: float

    @property
    def late(self) -> list[Straggler]:
        """The ranks that are late beyond doubt."""
        return [each for each in self.ranks if each.late.is_late]

    @property
    def findings(self) -> list[Finding]:
        return [
            Finding(
                f"Rank {late.rank} is late by {_ms(late.late_s)} a step ({late.late_pct:.1f} %), "
                f"in {late.steps} of {self.steps} steps.",
                (late.rank,), each.spends, seconds=late.late_s, share=late.late_pct / 100, confidence=late.confidence,
                saves=each.saves_s or None, assumes=f"if rank {late.rank} were no slower than the slowest other",
            )
            for each in self.late
            for late in (each.late,)
        ]  # fmt: skip


def stragglers(connection: Tables, steps: int, function: Function = by_looks, is_live: bool = True) -> Stragglers:
    """is_live: the job may still run.  Raises UsageError if there is only one rank, SilentError if little is known."""
    return _Look(connection, steps, function, is_live).report()


class _Look:
    """One look at a job's last steps."""

    def __init__(self, connection: Tables, steps: int, function: Function, is_live: bool) -> None:
        self._connection, self._function, self._is_live = connection, function, is_live
        result = connection.query(
            "SELECT rank, step, sampled, duration, comm_duration AS comm, data_duration AS data, forward_duration AS "
            "forward, backward_duration AS backward, validation_duration AS validation, optimizer_duration AS "
            "optimizer, other_duration AS other "
            f"FROM python.step_trace WHERE step > (SELECT MAX(step) FROM python.step_trace) - {int(steps)} "
            "AND duration IS NOT NULL AND NOT eval_duration > 0"
        )
        rows, self._coverage = result.to_pylist(), result.coverage
        # the other queries' notes would repeat these
        self._notes = connection.notes = [note.text for note in result.notes]
        self.ranks = self._comparable({row["rank"] for row in rows})
        known = [row for row in rows if row["comm"] is not None]
        counts = Counter(row["step"] for row in known)
        self.steps = sorted(step for step, count in counts.items() if count == len(self.ranks))
        if len(self.steps) < LEAST_STEPS:
            raise SilentError(
                f"Collectives are known on all ranks for only {len(self.steps)} steps, {LEAST_STEPS} are needed.",
                f'What is recorded: probe {connection.endpoint} query "SELECT rank, collectives_tap FROM probe.agents"',
                "few-steps",
            )
        self._of = {name: self._array(known, name) for name in ("duration", "comm", *_PHASES)}
        self._sampled = self._array(known, "sampled").all(axis=0)
        self._window = f"step BETWEEN {self.steps[0]} AND {self.steps[-1]}"

    def _comparable(self, seen: set[int]) -> list[int]:
        """The ranks to compare; raises what stands in the way.  seen: those with steps."""
        agents = self._connection.agents
        if self._coverage.silent:
            if len(seen) > 1:
                return sorted(seen)
            why, hint = f"No other rank to compare: {self._coverage}.", f"Run: probe {self._connection.endpoint} hang"
            raise SilentError(why, hint)
        if len(agents) > 1:
            return sorted({facts.rank or 0 for facts in agents})
        size = max((facts.world_size or 1 for facts in agents), default=1)
        if size > 1:
            raise UsageError(f"Only one of {size} ranks is attached here.", "Give the pid of the launcher.", "one-rank")
        raise UsageError("Only one rank: nothing to compare.", code="one-rank")

    def report(self) -> Stragglers:
        own = self._of["duration"] - self._of["comm"] - self._on_device()
        step_s = float(np.median(self._of["duration"]))
        last = self._last()
        ranks = [
            Straggler(late, last.get(late.rank), self._spends(late) if late.is_late else [], self._saves_s(late, own))
            for late in lateness(self.ranks, own, step_s)
        ]
        self._connection.notes = self._notes + (self._still(step_s) if self._is_live else [])
        return Stragglers(ranks, len(self.steps), step_s)

    def _saves_s(self, late: Lateness, own: Seconds) -> float:
        return float((own.max(axis=0) - np.delete(own, self.ranks.index(late.rank), 0).max(axis=0)).clip(0).mean())

    def _still(self, step_s: float) -> list[str]:
        """A note if no step has ended for a while."""
        (row,) = self._rows(f"SELECT epoch(MAX(time)) AS began FROM python.step_trace WHERE step >= {self.steps[-1]}")
        still_s = time.time() - row["began"]
        if still_s < max(_STILL_S, _STILL_STEPS * step_s):
            return []
        return [
            f"No step has ended for {still_s:.0f} s; this is about the steps before.  Why: probe "
            f"{self._connection.endpoint} hang"
        ]

    def _rows(self, sql: str) -> list[dict[str, Any]]:
        return self._connection.query(sql).to_pylist()

    def _array(self, rows: Sequence[Mapping[str, Any]], name: str, absent: float = np.nan) -> Seconds:
        """NaN where nothing is known.  absent: where there is no row."""
        made = np.full((len(self.ranks), len(self.steps)), absent)
        columns = {step: column for column, step in enumerate(self.steps)}
        of_rank = {rank: made[place] for place, rank in enumerate(self.ranks)}
        for row in rows:
            if row["step"] in columns and row["rank"] in of_rank:
                of_rank[row["rank"]][columns[row["step"]]] = np.nan if row[name] is None else row[name]
        return made

    def _on_device(self) -> Seconds:
        """Durations of operations that wait for other ranks on a device, where they run one after another."""
        rows = self._rows(
            "SELECT rank, step, SUM(duration_ms) / 1e3 AS seconds FROM python.nccl_trace "
            f"WHERE {self._window} AND backend = 'nccl' AND state = 'done' GROUP BY ALL"
        )
        return np.minimum(np.nan_to_num(self._array(rows, "seconds")), self._of["duration"] - self._of["comm"])

    def _last(self) -> dict[int, float]:
        """For each rank, the percentage of collectives at which it arrived last, of those that all members reached."""
        rows = self._rows(
            "SELECT last_rank AS rank, COUNT(*) * 100.0 / SUM(COUNT(*)) OVER () AS pct FROM probe.collectives "
            f"WHERE {self._window} AND group_size > 1 AND len(arrived) = group_size GROUP BY ALL"
        )
        return (dict.fromkeys(self.ranks, 0.0) if rows else {}) | {row["rank"]: row["pct"] for row in rows}

    def _spends(self, late: Lateness) -> list[str]:
        """What takes the rank longer than the others, in lines: by phase, with the module or loader; its host."""
        place = self.ranks.index(late.rank)
        sampled = self._sampled.sum() >= LEAST_SAMPLED
        steps = self._sampled if sampled else np.ones_like(self._sampled)
        of, names = dict(self._of), dict(_PHASES)
        if not sampled:
            of["other"] = of["other"] + sum(np.nan_to_num(of.pop(phase)) for phase in _CALLS)
            names["other"] = "in forward or outside of all phases"
        told = []
        for phase in names.keys() & of.keys():
            more = float(np.median(excess(of[phase][:, steps])[place]))
            if more > _WORTH * late.late_s:
                told.append((more, f"{_ms(more)} longer {names[phase]}{self._inside(phase, late.rank, more, steps)}"))
        told += self._device(late, steps) if sampled else []
        return [*(line for _, line in sorted(told, reverse=True)), *self._host(late.rank)]

    def _inside(self, phase: str, rank: int, more: float, steps: Any) -> str:
        """The module, loader or function that makes up most of a phase's excess, if one does."""
        if phase == "other":
            where = self._function(self._connection, self.ranks, rank)
            return f", mostly in {where}" if where else ""
        if phase not in _PARTS:
            return ""
        word, columns, where = _PARTS[phase]
        by_part = self._by_part(columns, where, rank, steps)
        what = max(by_part, key=lambda each: by_part[each], default="")
        # a median of parts may exceed that of their sum by a little
        return f", {_ms(min(more, by_part[what]))} of it {word} {what}" if what and by_part[what] > more / 2 else ""

    def _by_part(self, columns: str, where: str, rank: int, steps: Any) -> dict[str, float]:
        """What a rank spends more than the others on each part, in seconds of the median step of these."""
        chosen = ", ".join(str(step) for step, wanted in zip(self.steps, steps.tolist(), strict=True) if wanted)
        parts: dict[str, list[dict[str, Any]]] = {}
        for row in self._rows(f"SELECT rank, step, {columns} WHERE step IN ({chosen}) AND {where} GROUP BY ALL"):
            parts.setdefault(str(row["what"]), []).append(row)
        place = self.ranks.index(rank)
        return {what: _more(self._array(rows, "seconds", absent=0.0)[:, steps], place) for what, rows in parts.items()}

    def _device(self, late: Lateness, steps: Any) -> list[tuple[float, str]]:
        """How much longer its device takes: the rows in which it waits for other ranks take less time, and are left
        out."""
        by_part = {part: more for part, more in self._by_part(*_ON_DEVICE, late.rank, steps).items() if more > 0}
        more = sum(by_part.values())
        if more <= _WORTH * late.late_s:
            return []
        most = max(by_part, key=lambda each: by_part[each])
        return [(more, f"{_ms(more)} longer on its device, {_ms(by_part[most])} of it in {most}")]

    def _host(self, rank: int) -> list[str]:
        """Of the time in which a rank had work for a core, the share in which it got none."""
        sql = "SELECT rank, 100 * SUM(core_wait_pct) / SUM(core_wait_pct + cpu_pct) AS pct FROM host.process_trace"
        rows = self._rows(f"{sql} WHERE {self._window} AND core_wait_pct + cpu_pct > 0 GROUP BY ALL")
        waits = {row["rank"]: row["pct"] for row in rows}
        if rank not in waits or len(waits) < 2:
            return []
        usual = waits[rank] - above_others(waits, rank)
        if waits[rank] < max(usual + _CORE_PCT, usual * _CORE_TIMES):
            return []
        return [
            f"{waits[rank]:.0f} % of the time in which it has work waiting for a core that other work occupies "
            f"(others: {usual:.0f} %)"
        ]


def _more(seconds: Seconds, place: int) -> float:
    """What a rank spends more than those of the others that are known, in the median step; 0 if that is not known."""
    own, others = seconds[place], np.delete(seconds, place, 0)
    known = ~np.isnan(own) & ~np.isnan(others).all(axis=0)
    if known.sum() < LEAST_SAMPLED:
        return 0.0
    return float(np.median(own[known] - np.nanmedian(others[:, known], axis=0)))


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"
