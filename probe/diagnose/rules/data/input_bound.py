"""Steps that wait for the data loader."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator

from ...figures import ms, pct
from ...places import Places, places
from ...rule import Finding, Rule
from ...watched import Watched

LEAST = 0.03  # of the step: below that nobody would change the loader
_MOST_WORKERS = 8
_SQL = (
    "SELECT loader, COUNT(*) AS batches, MODE(num_workers) AS workers, MODE(batch_size) AS batch_size, "
    "BOOL_OR(pin_memory) AS pinned, 1e3 * AVG(wait_duration) AS wait_ms, AVG((ready = 0)::INT) AS none_ready, "
    "SUM(wait_duration) AS waited FROM python.dataloader_trace WHERE {window} AND NOT failed AND NOT in_eval "
    "GROUP BY loader ORDER BY waited DESC"
)


def _find(watched: Watched) -> Iterator[Finding]:
    data = watched.phase("data")
    loaders = watched.rows(_SQL)
    if not loaders or data.share < LEAST:
        return
    first = loaders[0]
    loader, workers = first["loader"], first["workers"]
    why = [f"data {ms(data.seconds)} ({ms(data.low)} to {ms(data.high)}) of {ms(watched.step_s)}"]
    if first["none_ready"] is not None:
        why += [f"no batch was ready for {pct(first['none_ready'])} of {first['batches']} requests"]
    more, saves = _workers(watched, data.seconds) if workers == 0 else (None, None)
    named = loader != "DataLoader" and more is not None
    setting = f"{loader}.num_workers, {loader}.prefetch_factor = {more}, 2"
    yield Finding(
        f"Input-bound: {pct(data.share)} of each step waits for {loader}.",
        why=why,
        remedy=f'probe {watched.endpoint} eval "{setting}"' if named else "num_workers of the DataLoader" * bool(more),
        effect="takes effect with the next epoch" if named else "",
        seconds=data.seconds, share=data.share, confidence=data.sure(LEAST), where=_where(watched),
        now=f"{loader}: num_workers={workers}, batch_size={first['batch_size']}, pin_memory={first['pinned']}",
        saves=saves, assumes=f"with {more} workers" if more else "",
    )  # fmt: skip


def _where(watched: Watched) -> str:
    if watched.why_not_profiled:
        return ""
    found: Places = places(watched, "phase = 'data'")
    deepest = found.deepest()
    return f"{pct(deepest.share)} of the loader's time is in {deepest}" if deepest else ""


def _workers(watched: Watched, data_s: float) -> tuple[int, float]:
    """How many make batches as fast as the rest of the step uses them, and what that saves."""
    rest_s = max(watched.step_s - data_s, 1e-6)
    cores = os.cpu_count() or 1
    workers = max(1, min(math.ceil(1.25 * data_s / rest_s), _MOST_WORKERS, cores))
    return workers, data_s - max(0.0, data_s / workers - rest_s)


INPUT_BOUND: Rule[Watched] = Rule(
    "input-bound",
    "Steps wait for batches.",
    _find,
    needs=("python.step_trace", "python.dataloader_trace", "python.profile"),
    sql=_SQL,
)
