"""A rank that the others wait for in every step."""

from __future__ import annotations

from ...rule import Rule, Tables
from ...stragglers import STEPS, stragglers

STRAGGLER: Rule[Tables] = Rule(
    "straggler",
    "A rank does more of its own work in a step than the others, which wait for it.",
    lambda tables: stragglers(tables, STEPS).findings,
    needs=("python.step_trace", "python.nccl_trace", "probe.collectives"),
)
