"""Settings of a run, as its tables and its recording tell them, and which of them differ between two sides.

Called by compare.py.  Invariant: a setting that neither side tells is absent; one that a side does not tell is ''.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import Interrupted, ProbeError
from .run import Seen

_AGENTS = "SELECT DISTINCT world_size, version AS probe, python, torch, cuda FROM probe.agents WHERE state = 'answers'"
_LOADERS = (
    "SELECT loader, MAX(num_workers) AS num_workers, MAX(batch_size) AS batch_size, MAX(prefetch_factor) AS "
    "prefetch_factor, BOOL_OR(pin_memory) AS pin_memory FROM python.dataloader_trace "
    "WHERE step BETWEEN {first} AND {last} GROUP BY ALL"
)
_MODELS = (
    "SELECT STRING_AGG(DISTINCT device, ', ' ORDER BY device) AS devices, BOOL_OR(compiled) AS compiled, "
    "STRING_AGG(DISTINCT module_type, ', ' ORDER BY module_type) FILTER (stage = 'step') AS optimizers "
    "FROM python.torch_trace WHERE step BETWEEN {first} AND {last}"
)
_GROUPS = (
    "SELECT STRING_AGG(DISTINCT backend, ', ' ORDER BY backend) AS backends, STRING_AGG(DISTINCT dtype, ', ' "
    "ORDER BY dtype) AS collectives_dtype FROM python.nccl_trace WHERE step BETWEEN {first} AND {last}"
)


@dataclass(frozen=True)
class Setting:
    """One that differs.  before, after: its value on either side, '' if that does not tell it."""

    name: str
    before: str
    after: str


def settings_that_differ(before: Sequence[Seen], after: Sequence[Seen]) -> list[Setting]:
    """By name."""
    sides = [_joined([_settings(run) for run in side]) for side in (before, after)]
    old, new = sides
    names = sorted({*old, *new})
    return [Setting(name, old.get(name, ""), new.get(name, "")) for name in names if old.get(name) != new.get(name)]


def _joined(runs: Sequence[dict[str, str]]) -> dict[str, str]:
    """Of a side: what its runs say, each value once."""
    names = {name for run in runs for name in run}
    return {name: ", ".join(sorted({run[name] for run in runs if name in run})) for name in names}


def _settings(seen: Seen) -> dict[str, str]:
    told: dict[str, Any] = dict(seen.run.settings)
    for row in [row for sql in (_AGENTS, _MODELS, _GROUPS) for row in _rows(seen, sql)]:
        told |= row
    for row in _rows(seen, _LOADERS):
        loader = row.pop("loader")
        told |= {f"{loader}.{name}": str(value) for name, value in row.items()}  # None is a setting, too
    samples = seen.steps["samples"]
    if not np.isnan(samples).all():
        told["samples_per_step"] = f"{np.nanmedian(samples):g}"
    return {name: str(value) for name, value in told.items() if value is not None}


def _rows(seen: Seen, sql: str) -> list[dict[str, Any]]:
    """None where the run cannot tell."""
    try:
        return seen.run.tables.query(sql.format(first=seen.first, last=seen.last)).to_pylist()
    except Interrupted:
        raise
    except ProbeError:
        return []
