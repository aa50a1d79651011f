"""Runs of a job that never ran: steps, modules and collectives with noise of steps and of runs, in planted tables."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from planted import Planted

from probe.diagnose.change.blocks import Values
from probe.diagnose.compare.run import Run

PARTS_MS = {  # phase -> module -> a step's time in it
    "data": {"": 2.0}, "forward": {"embed": 1.0, "layers.0.attn": 2.0, "layers.1.attn": 2.0, "head": 3.0},
    "backward": {"layers.0.attn": 5.0, "layers.1.attn": 5.0, "head": 6.0}, "optimizer": {"AdamW": 4.0},
    "comm": {"": 6.0}, "other": {"": 4.0},
}  # fmt: skip
STEP_MS = sum(ms for modules in PARTS_MS.values() for ms in modules.values())
_STAGES = {"forward": "forward", "backward": "backward", "optimizer": "step"}


@dataclass(frozen=True)
class Kind:
    """runs_differ: the standard deviation of a run's mean step; noise: of a step; alike: how much a step is like the
    one before; slower: what the part takes longer, as a share of the step; rss_mb: of memory."""

    steps: int = 400
    runs_differ: float = 0.01
    noise: float = 0.05
    alike: float = 0.5
    slower: float = 0.0
    part: tuple[str, str] = ("forward", "head")
    rss_mb: float = 1000.0


def run(kind: Kind, seed: int) -> Run:
    """Every fifth block of ten steps is sampled."""
    chance = np.random.default_rng(seed)
    parts = {(phase, module): _part(kind, chance, phase, module) for phase, of in PARTS_MS.items() for module in of}
    sampled = np.arange(kind.steps) // 10 % 5 == 0
    planted = Planted(f"run {seed}")
    planted.insert("python.step_trace", _steps(kind, chance, parts, sampled))
    planted.insert("python.torch_trace", _modules(parts, sampled))
    planted.insert("python.nccl_trace", _collectives(parts))
    return Run(planted)


def _part(kind: Kind, chance: np.random.Generator, phase: str, module: str) -> Values:
    """Seconds of each step: noise, and an effect of the run, so that those of all parts make those of the step."""
    mean = PARTS_MS[phase][module] / 1e3
    spread = np.sqrt(mean * STEP_MS / 1e3)
    noise = chance.standard_normal(kind.steps + 50)
    for at in range(1, len(noise)):
        noise[at] = kind.alike * noise[at - 1] + np.sqrt(1 - kind.alike**2) * noise[at]
    planted = kind.slower * STEP_MS / 1e3 if (phase, module) == kind.part else 0.0
    of_run = kind.runs_differ * spread * chance.standard_normal()
    return np.maximum(mean + planted + of_run + kind.noise * spread * noise[50:], 1e-9)


def _steps(kind: Kind, chance: np.random.Generator, parts: dict[tuple[str, str], Values], sampled: Values) -> pa.Table:
    phases = {phase: sum(parts[phase, module] for module in of) for phase, of in PARTS_MS.items()}
    duration = sum(phases.values())
    phases["other"] = np.where(sampled, phases["other"], phases["other"] + phases["forward"])
    columns = {f"{name}_duration": pa.array(values) for name, values in phases.items()}
    columns["forward_duration"] = pa.array(phases["forward"], mask=~sampled)
    memory = kind.rss_mb * (1 + kind.runs_differ * chance.standard_normal()) + 5 * chance.standard_normal(kind.steps)
    return pa.table({
        "rank": np.zeros(kind.steps, np.int32), "step": np.arange(1, kind.steps + 1), "duration": duration,
        "sampled": sampled, "eval_duration": np.zeros(kind.steps), "rss_mb": memory,
        "samples": pa.array([32] * kind.steps, mask=~sampled),
        "validation_duration": pa.array(np.zeros(kind.steps), mask=~sampled), **columns,
    })  # fmt: skip


def _modules(parts: dict[tuple[str, str], Values], sampled: Values) -> pa.Table:
    steps = np.flatnonzero(sampled) + 1
    of = [(phase, module) for phase, module in parts if phase in _STAGES]
    count = len(steps)
    return pa.table({
        "rank": np.zeros(count * len(of), np.int32), "step": np.tile(steps, len(of)),
        "in_eval": np.zeros(count * len(of), np.bool_),
        "module": np.repeat([module for _, module in of], count), "module_type": np.repeat("Module", count * len(of)),
        "stage": np.repeat([_STAGES[phase] for phase, _ in of], count), "training": np.ones(count * len(of), np.bool_),
        "grad": np.ones(count * len(of), np.bool_), "duration": np.concatenate([parts[each][sampled] for each in of]),
    })  # fmt: skip


def _collectives(parts: dict[tuple[str, str], Values]) -> pa.Table:
    seconds = parts["comm", ""]
    count = len(seconds)
    return pa.table({
        "rank": np.zeros(count, np.int32), "step": np.arange(1, count + 1), "in_eval": np.zeros(count, np.bool_),
        "operation_type": np.repeat("all_reduce", count), "source": np.repeat("ddp", count),
        "duration_ms": seconds * 1e3, "state": np.repeat("done", count),
    })  # fmt: skip
