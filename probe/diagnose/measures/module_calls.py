"""What training spends in the calls of modules: how often each is called, how long one call takes, and its share.

Called by rules on what the model computes.  Invariant: times are of sampled steps and of the host's clock, but those of
backward and of what is recomputed of the device that computes; they exclude the modules inside, and calls that train
nothing are left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ...errors import SilentError
from ..watched import Phase, Watched
from .places import EXPLAINS

_ON_CUDA = "device LIKE 'cuda%'"
# What a call took where it computes: on a device the host's clock has only how long it took to start the work.
_OWN = f"CASE WHEN {_ON_CUDA} THEN duration ELSE host_duration END"
TINY_S = 100e-6  # starting a few operators and noting them for autograd takes so long, whatever they compute
_LEAST_CALLS = 30  # a step; what so few calls cost more than they should, nobody would notice
_ROWS = "python.torch_trace WHERE {window} AND NOT in_eval AND stage IN ('forward', 'backward')"
# A model that was never put into training mode, as `from_pretrained` returns it, is trained all the same.  The mode of
# a backward pass is that of the last call before it, which may be a loss's.
_IN_EVAL_MODE = (
    f"SELECT root FROM {_ROWS} GROUP BY root HAVING NOT BOOL_OR(training AND stage = 'forward') "
    "AND BOOL_OR(stage = 'backward')"
)
_TRAINS = f"grad AND (training OR stage = 'backward' OR root IN ({_IN_EVAL_MODE}))"
CALLS = f"""
WITH calls AS (SELECT *, stage = 'forward' AND NOT recompute AS first FROM {_ROWS} AND {_TRAINS}),
     inner_calls AS (SELECT root, parent AS module, COUNT(*) AS n FROM calls WHERE first GROUP BY ALL),
     untimed AS (SELECT DISTINCT rank, step, true AS untimed FROM calls WHERE stage = 'backward' AND {_OWN} IS NULL)
SELECT root, module, ANY_VALUE(module_type) AS module_type, MIN(depth) AS depth, ANY_VALUE(parent) AS parent,
       COUNT(*) FILTER (first) / (SELECT COUNT(DISTINCT (rank, step)) FROM calls) AS calls_a_step,
       MEDIAN(host_duration) FILTER (first) AS median_s, COALESCE(ANY_VALUE(n), 0) / COUNT(*) FILTER (first) AS inside,
       SUM(host_duration) AS seconds, COALESCE(SUM({_OWN}) FILTER (stage = 'backward' AND untimed IS NULL), 0)
           AS backward_s,
       BOOL_OR({_ON_CUDA}) AS on_cuda
FROM calls LEFT JOIN inner_calls USING (root, module) LEFT JOIN untimed USING (rank, step)
WHERE module IS NOT NULL GROUP BY root, module
HAVING calls_a_step > 0 ORDER BY seconds DESC
""".strip()


def _sum_of(rows: str) -> str:
    """What they took, 0 without any; NULL where a device's time is not known of one."""
    return (
        f"CASE WHEN COUNT(*) FILTER ({rows}) = COUNT({_OWN}) FILTER ({rows}) "
        f"THEN COALESCE(SUM({_OWN}) FILTER ({rows}), 0) END"
    )


# One query for all that rules ask of single steps: each look at the rows of all calls takes a while.
BY_STEP = f"""
SELECT rank, step, COALESCE(SUM(host_duration) FILTER ({_TRAINS}), 0) AS trained_s,
       {_sum_of("recompute")} AS recomputed_s, ANY_VALUE(root) FILTER (recompute) AS recomputed,
       {_sum_of("stage = 'backward' AND root IS NOT NULL")} AS backward_s,
       BOOL_OR({_ON_CUDA}) AS on_cuda
FROM {_ROWS} GROUP BY rank, step
""".strip()
_BATCH = "SELECT AVG(samples) AS samples FROM python.step_trace WHERE {window}"
_BUSY = "SELECT AVG(gpu_util_pct) AS busy FROM host.gpu_trace WHERE {window}"
_BUSY_PCT = 80  # from which on a device has no time left that a host could fill


@dataclass(frozen=True)
class ModuleCalls:
    """One module.  calls_a_step: forward passes of it, on each rank; median_s: of one, without modules inside; inside:
    calls of other modules in it; seconds: all of its own, forward and backward; parent: the module that calls it;
    backward_s: of all steps in which the device's times of all backward passes are known."""

    root: str
    module: str
    module_type: str
    depth: int
    parent: str | None
    calls_a_step: float
    median_s: float
    inside: float
    seconds: float
    backward_s: float
    on_cuda: bool

    @property
    def is_root(self) -> bool:
        """Whether it is the model itself, not what is called in a module that nobody calls."""
        return self.depth == 0 and self.module == self.module_type

    @property
    def usual_s(self) -> float:
        """Of a step, in forward passes, were all calls like the median: what a busy machine adds is not in it."""
        return self.median_s * self.calls_a_step

    @property
    def call_s(self) -> float:
        """Of one forward call; a module around others makes their calls, too."""
        return self.median_s / (1 + self.inside)

    @property
    def is_tiny(self) -> bool:
        """Whether starting a call takes most of it."""
        return self.call_s < TINY_S


class Calls:
    """The modules that train.  Raises SilentError if there are none."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self.modules = [ModuleCalls(**row) for row in watched.rows(CALLS)]
        if not self.modules:
            raise SilentError("No module was called to train it.", code="unseen")

    def part(self, modules: Iterable[ModuleCalls]) -> Phase:
        """What these take of the step."""
        share = sum(each.seconds for each in modules) / sum(each.seconds for each in self.modules)
        return of_steps(self._watched, "trained_s", "a module").scaled(share)

    @property
    def tiny(self) -> list[ModuleCalls]:
        """The modules whose calls do next to nothing, if they are what the model is made of; else none."""
        tiny = [each for each in self.modules if each.is_tiny]
        usual = sum(each.usual_s for each in self.modules)
        are_many = sum(each.calls_a_step for each in tiny) >= _LEAST_CALLS
        are_most = sum(each.usual_s for each in tiny) >= EXPLAINS * usual
        return tiny if are_many and are_most and not self.is_on_busy_device() else []

    def is_on_busy_device(self) -> bool:
        """Whether they run on one that has no time left, or may have none: then the host's clock says little."""
        return self._is_on_cuda and (self._busy_pct is None or self._busy_pct >= _BUSY_PCT)

    def is_on_device_with_room(self) -> bool:
        """Whether they run on one that has time left, or may have some."""
        return self._is_on_cuda and (self._busy_pct is None or self._busy_pct < _BUSY_PCT)

    @property
    def _is_on_cuda(self) -> bool:
        return any(each.on_cuda for each in self.modules)

    @property
    def _busy_pct(self) -> float | None:
        (row,) = self._watched.rows(_BUSY)
        return None if row["busy"] is None else float(row["busy"])


def of_steps(watched: Watched, column: str, name: str) -> Phase:
    """A column of BY_STEP as a part of the step.  Raises SilentError where a device's times are not known."""
    rows = watched.rows(BY_STEP)
    if is_on_cuda(watched) and not any(row[column] for row in rows) and any(row[column] is None for row in rows):
        raise SilentError(f"How long {name} takes on the device is not known.", code="unseen")
    return watched.part(name, ({**row, "seconds": row[column]} for row in rows))


def is_on_cuda(watched: Watched) -> bool:
    return any(row["on_cuda"] for row in watched.rows(BY_STEP))


def saved(watched: Watched, seconds: float) -> float | None:
    """What a step is shorter without so much of it; None on a device: a step need not wait for work there, nor work
    there for the host."""
    return None if is_on_cuda(watched) else seconds


def samples_a_step(watched: Watched) -> float | None:
    """Of one rank; None where no tensor was seen."""
    (row,) = watched.rows(_BATCH)
    return None if row["samples"] is None else float(row["samples"])


def listed(modules: Iterable[ModuleCalls], most: int = 3) -> str:
    """The types of these modules, those first that take longest: `Linear, ReLU, Messages`."""
    seconds: dict[str, float] = {}
    for each in modules:
        seconds[each.module_type] = seconds.get(each.module_type, 0.0) + each.seconds
    names: list[Any] = sorted(seconds, key=lambda name: -seconds[name])
    return ", ".join(names[:most]) + ", …" * (len(names) > most)
