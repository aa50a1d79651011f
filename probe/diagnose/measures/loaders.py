"""The loaders that a job took batches from while it was watched, and what more workers would bring.

Used by the rules on batches.  Invariant: a figure is per step and rank, in seconds of the training thread.
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...host.agent_memory import here
from ..watched import Watched
from . import hosts
from .hosts import Cores

BATCHES = (
    "SELECT loader, COUNT(*) AS batches, COUNT(DISTINCT step) AS steps, MODE(num_workers) AS workers, "
    "MODE(batch_size) AS batch_size, BOOL_OR(pin_memory) AS pinned, SUM(wait_duration) AS waited, "
    "AVG((ready = 0)::INT) AS none_ready, COALESCE(SUM(wait_duration) FILTER (ready = 0), 0) AS starved, "
    "COALESCE(MEDIAN(wait_duration) FILTER (ready > 0), 0) AS usual, COALESCE(SUM(outstanding - ready), 0) AS unmade, "
    "COALESCE(MAX(outstanding), 0) AS most FROM python.dataloader_trace "
    "WHERE {window} AND NOT failed AND NOT in_eval GROUP BY loader ORDER BY waited DESC"
)
ITERATORS = (
    "SELECT loader, COUNT(*) AS iterators, SUM(start_duration) AS started, SUM(first_batch_duration) AS first_batch, "
    "COUNT(first_batch_duration) AS firsts FROM python.iterator_trace WHERE {window} AND NOT in_eval GROUP BY loader"
)
_BUSY = (
    "SELECT rank, AVG(cpu_pct) AS cpu, COALESCE(AVG(core_wait_pct), 0) AS waits, COALESCE(AVG(host_cpu_pct), 0) AS "
    "host FROM host.process_trace WHERE {window} AND cpu_pct IS NOT NULL GROUP BY rank"
)
_MOST_WORKERS = 8
_HOLDERS = ("", "trainer.", "trainer.callback_handler.")  # of a loader, or the trainer of Lightning, or Hugging Face
_IS_WRAPPER = (  # or neither that nor a loader: None
    "True if 'base_dataloader' in getattr(LOADER, '__dict__', ()) else "
    "False if issubclass(type(LOADER), __import__('torch').utils.data.DataLoader) else None"
)
_SPARE = 1.25  # times as many workers as would just do, because batches differ


@dataclass(frozen=True)
class Loader:
    """name: as the job calls it; batches: in the mean step; steps: part of the steps that took one; none_ready: part of
    the requests; waited_s: for its batches; starved_s: while none was ready, first ones apart; firsts_s: for starts of
    iterators and their first batches; starting_s: beyond what a batch takes its workers, least_starting_s: at least;
    iterators: starts on each rank."""

    name: str
    workers: int
    batches: float
    steps: float
    none_ready: float | None
    waited_s: float
    starved_s: float
    firsts_s: float
    starting_s: float
    least_starting_s: float
    iterators: float
    batch_size: int | None
    pinned: bool

    @property
    def now(self) -> str:
        size = f", batch_size={self.batch_size}" if self.batch_size else ""
        return f"{self.name}: num_workers={self.workers}{size}, pin_memory={self.pinned}"


def loaders(watched: Watched) -> list[Loader]:
    """That with the longest waits first."""
    starts, steps = {row["loader"]: row for row in watched.rows(ITERATORS)}, watched.steps * len(watched.ranks)
    return (
        [_loader(watched, row, starts.get(row["loader"], {}), steps) for row in watched.rows(BATCHES)] if steps else []
    )


def _loader(watched: Watched, row: Mapping[str, Any], start: Mapping[str, Any], steps: int) -> Loader:
    workers, batches, none_ready = row["workers"] or 0, row["batches"], row["none_ready"]
    firsts, first_s, started_s = (start.get(name) or 0 for name in ("firsts", "first_batch", "started"))
    # Where workers do not keep up, the first batch would be waited for if they had been there before, too.
    behind = max(0.0, (none_ready or 0.0) - firsts / batches)
    making_s = row["usual"] + behind * workers * watched.step_s * steps / batches
    most_s = max(making_s, _making_s(row, workers, firsts, watched.step_s * steps - started_s - first_s))
    least_s = started_s + max(0.0, first_s - firsts * most_s)
    starting_s = least_s if most_s < math.inf else started_s + max(0.0, first_s - firsts * making_s)
    return Loader(
        row["loader"], workers, batches / steps, row["steps"] / watched.steps, none_ready, row["waited"] / steps,
        max(0.0, row["starved"] - first_s) / steps, (started_s + first_s) / steps, starting_s / steps, least_s / steps,
        (start.get("iterators") or 0) / len(watched.ranks), row["batch_size"], bool(row["pinned"]),
    )  # fmt: skip


def _making_s(row: Mapping[str, Any], workers: int, firsts: int, rest_s: float) -> float:
    """What a batch takes its worker, at most: at so many requests it is not made yet, and at most until the next one.

    rest_s: how long the training goes on, starts and first batches apart.  Infinite if no worker makes a second batch
    for an iterator.
    """
    later = row["batches"] - firsts * workers  # made after the first ones, with which all workers begin
    if later <= 0:
        return math.inf
    requests = max(0.0, float(row["unmade"] - firsts * row["most"])) / later  # at that of the first one, none is made
    return float(min(workers, requests + min(1.0, requests)) * rest_s / row["batches"])


def expression(watched: Watched, loader: Loader) -> str | None:
    """What the loader is in the job: its variable, or where the job's trainer has it; None if that cannot be read,
    or is an iterator, on which settings have no effect.

    Of accelerate's, the loader inside: what is set of the one around it changes nothing.
    """
    for path in [f"{holder}{loader.name}" for holder in _HOLDERS if loader.name != "DataLoader"]:
        is_wrapper = watched.read(_IS_WRAPPER.replace("LOADER", path))
        if is_wrapper in ("True", "False"):
            return f"{path}.base_dataloader" if is_wrapper == "True" else path
    return None


@dataclass(frozen=True)
class Use:
    """Of cores by the ranks of the first one's host.  ranks: how many those are; shared: cores that they may use
    together, None if that is unknown; cpu: that a rank uses; waits: part of the time that it waits for one; host: part
    of the host's cores that are busy; 0 where that is not known."""

    cores: Cores
    ranks: int
    shared: float | None
    cpu: float
    waits: float
    host: float

    @property
    def free(self) -> float:
        """Cores for the ranks, if all else goes on."""
        return max(1e-6, min(self.shared or math.inf, self.cores.total - self._others))

    def part(self, workers: int) -> float:
        """Of the cores for the ranks: what they and so many workers of each use, at most; 0 where these are unknown."""
        return (self.ranks * self.cpu + min(self.ranks * workers, self._others)) / (self.shared or math.inf)

    def is_computed(self, workers: int) -> bool:
        """Whether so many workers of a rank may be computing, on cores that are not all of the host's."""
        return self.cores.usable < self.cores.total and self._others > self.ranks * workers / 2

    @property
    def _others(self) -> float:
        """Cores that something else uses, such as workers."""
        return max(0.0, self.host * self.cores.total - self.ranks * self.cpu)


def use(watched: Watched) -> Use:
    """It reads the job once."""
    told, rows = hosts.cores(watched), watched.rows(_BUSY)
    beside = [facts for facts in watched.agents if facts.host == watched.agents[0].host]
    pids = [pid for facts in beside if (pid := here(facts)) is not None]
    shared = told.shared(len(beside), pids) if told is not None else None
    cpu, waits, host = (sum(row[name] for row in rows) / max(1, len(rows)) / 100 for name in ("cpu", "waits", "host"))
    return Use(told or _unknown_cores(watched), len(beside), shared, cpu, waits, host)


def _unknown_cores(watched: Watched) -> Cores:
    """Of a job that cannot be asked: all of this host's, or one of another's."""
    facts = watched.agents[0] if watched.agents else None
    is_elsewhere = facts is not None and facts.host and facts.host != socket.gethostname()
    total = 1 if is_elsewhere else os.cpu_count() or 1
    return Cores(total, total, math.inf, 1)


def workers_for(watched: Watched, loader: Loader) -> tuple[int, float]:
    """How many workers make batches as fast as the rest of the step uses them, where the job now makes them itself; and
    how long a step then takes.

    What computes does so faster on other cores only, those that nobody else uses; what waits for storage needs none.
    """
    data_s, now = loader.waited_s, use(watched)
    rest_s = max(watched.step_s - data_s, 1e-6)
    cpu_s = now.cpu * watched.step_s
    is_computed = cpu_s + now.waits * watched.step_s - rest_s > data_s / 2  # else it is waited for
    most = min(_MOST_WORKERS, math.ceil(now.cores.usable)) if is_computed else _MOST_WORKERS
    workers = max(1, min(math.ceil(round(_SPARE * data_s / rest_s, 2)), most))
    first_s = data_s / loader.batches * loader.iterators / watched.steps  # new workers have none ready at first
    computes_s = now.ranks * cpu_s / now.free if is_computed else 0.0
    return workers, max(rest_s + first_s, data_s / workers, computes_s)


def enough_workers(watched: Watched, loader: Loader, now: Use) -> tuple[int, float]:
    """How many workers keep up with the rest of the step, where those there are do not; how long a step then takes.

    At least so long as the cores of the host, and those that the ranks may use, need for what they do now if none of
    them is ever idle.
    """
    rest_s = max(watched.step_s - loader.starved_s, 1e-6)
    making_s = loader.workers * watched.step_s  # of a worker, for the batches of a step: all of them are at it
    most = math.ceil(now.cores.usable) if now.is_computed(loader.workers) else 4 * _MOST_WORKERS
    workers = max(min(math.ceil(round(_SPARE * making_s / rest_s, 2)), most), loader.workers + 1)
    return workers, max(rest_s, making_s / workers, max(now.host, now.part(loader.workers)) * watched.step_s)
