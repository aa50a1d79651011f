"""Every rule there is: a room for each kind, in the order of these imports.  probe.diagnose says how to add one.

Invariant: rules on evidence stand in the order of their certainty, because `hang` reports the first that finds
something.
"""

# ruff: noqa: F401, I001 - an import registers a rule, and the order of imports is that of the rules

from __future__ import annotations

from typing import Any

from ..hang.evidence import Evidence
from ..rule import Rule
from ..watched import Watched
from .stuck.lost_ranks import ENDED, GONE
from .stuck.activity import NOT_HUNG
from .stuck.snippet import SNIPPET
from .stuck.lost_ranks import STOPPED
from .stuck.disagreement import MISMATCH, DEADLOCK
from .stuck.device import DEVICE
from .stuck.activity import COMPILING, SLOW, UNCLEAR
from .stuck.waiting import LOADER, WAITING
from .stuck.standstill import COLLECTIVE, UNKNOWN
from .stuck.activity import IDLE
from .stuck.standstill import STANDS
from .loop.unrepresentative_sampling import UNREPRESENTATIVE_SAMPLING
from .data.input_bound import INPUT_BOUND
from .data.starved_workers import STARVED_WORKERS
from .data.worker_respawn import WORKER_RESPAWN
from .loop.validation_heavy import VALIDATION_HEAVY
from .loop.checkpoint_stall import CHECKPOINT_STALL
from .loop.periodic_stall import PERIODIC_STALL
from .loop.python_outside_model import PYTHON_OUTSIDE_MODEL
from .loop.step_growing import STEP_GROWING
from .compute.sequential_scan import SEQUENTIAL_SCAN
from .compute.micro_batches import MICRO_BATCHES
from .compute.small_batch import SMALL_BATCH
from .compute.recompute import RECOMPUTE
from .compute.optimizer_unfused import OPTIMIZER_UNFUSED
from .compute.recompilation import RECOMPILATION
from .compute.frozen_with_gradients import FROZEN_WITH_GRADIENTS
from .compute.no_mixed_precision import NO_MIXED_PRECISION
from .compute.compute_bound import COMPUTE_BOUND
from .compute.server_saturated import SERVER_SATURATED
from .ranks.straggler import STRAGGLER
from .ranks.communication_bound import COMMUNICATION_BOUND
from .ranks.no_sync_missing import NO_SYNC_MISSING
from .ranks.small_buckets import SMALL_BUCKETS
from .machine.cpu_oversubscription import CPU_OVERSUBSCRIPTION
from .machine.host_contention import HOST_CONTENTION
from .machine.gil_contention import GIL_CONTENTION
from .machine.memory_creep import MEMORY_CREEP
from .machine.memory_near_limit import MEMORY_NEAR_LIMIT
from .machine.memory_bound import MEMORY_BOUND
from .machine.gpu_idle import GPU_IDLE
from .machine.gpu_throttled import GPU_THROTTLED

RULES: tuple[Rule[Any], ...] = tuple(each for each in list(globals().values()) if isinstance(each, Rule))
ON_EVIDENCE: tuple[Rule[Evidence], ...] = tuple(rule for rule in RULES if not rule.needs)
ON_TABLES: tuple[Rule[Watched], ...] = tuple(rule for rule in RULES if rule.needs)
