"""The zoo: jobs with one planted cause each, and healthy near misses, on which `probe why` is judged.

A job is a function of a script in this folder; which codes the first finding may have is said here.  Imports no torch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
LAUNCHER = HERE.parent / "launcher.py"
FRAMEWORKS = HERE.parents[2] / os.environ.get("FRAMEWORKS", ".venv_frameworks")  # as in the Makefile
# By the target of the Makefile that makes its environment, "" for that of this process.
PYTHONS = {"": Path(sys.executable), "frameworks": FRAMEWORKS / "bin" / "python"}
LOUD = ("warning", "critical")  # what nothing that is said about a healthy job may be


@dataclass(frozen=True)
class Job:
    """name: its function in `script`; codes: what the first finding may be, none for a healthy job.

    remedy: Python that cures it while it runs, in the frame of its training loop; "" if nothing does.
    needs: which of PYTHONS runs it.
    """

    script: str
    name: str
    codes: tuple[str, ...] = ()
    ranks: int = 1
    remedy: str = ""
    needs: str = ""

    @property
    def can_run(self) -> bool:
        """Whether what it needs is there."""
        return PYTHONS[self.needs].exists()

    @property
    def command(self) -> tuple[str, ...]:
        launcher = (str(LAUNCHER), str(self.ranks)) if self.ranks > 1 else ()
        return (str(PYTHONS[self.needs]), *launcher, str(HERE / self.script), self.name)

    def right(self, report: Mapping[str, Any]) -> bool:
        """Whether `probe why --json` says what is so, in its verdict, which may be a state, or its first finding."""
        findings = report["findings"]
        if self.codes:
            return any(told["code"] in self.codes for told in (report["verdict"], *findings[:1]))
        return all(told["severity"] not in LOUD for told in (report["verdict"], *findings))


def without(report: Mapping[str, Any], codes: Collection[str]) -> dict[str, Any]:
    """The report as if these codes had not been found."""
    findings = [finding for finding in report["findings"] if finding["code"] not in codes]
    verdict = report["verdict"]
    if verdict["code"] in codes:
        loud = [finding for finding in findings if finding["severity"] in LOUD]
        verdict = loud[0] if loud else {"code": "healthy", "severity": "none", "sentence": "Nothing else is loud."}
    return {**report, "verdict": verdict, "findings": findings}


def named(script: str, ranks: int = 1, needs: str = "", **jobs: str) -> Iterator[Job]:
    """Jobs that find their code in their name, each with its remedy."""
    for name, remedy in jobs.items():
        code = next((code for code in CODES if name.startswith(code.replace("-", "_"))), "")
        yield Job(script, name, (code,) if code else (), ranks, remedy, needs)


CODES = (
    "checkpoint-stall", "communication-bound", "compiling", "compute-bound", "cpu-oversubscription",
    "frozen-with-gradients", "gil-contention", "host-contention", "hung", "idle", "input-bound", "memory-creep",
    "micro-batches", "no-sync-missing", "optimizer-unfused", "periodic-stall", "python-outside-model", "recompilation",
    "recompute", "sequential-scan", "server-saturated", "small-batch", "small-buckets", "starved-workers",
    "step-growing", "straggler", "validation-heavy", "worker-respawn",
)  # fmt: skip
# Of the codes that `why` knows those without a job here, and why; what rules find of them tests plant in tables.
NOT_PLANTED = {
    "gpu-idle": "needs a device",
    "gpu-throttled": "needs a device",
    "memory-bound": "needs a device",
    "no-mixed-precision": "needs a device",
    "memory-near-limit": "fills the memory of the host",
    "unrepresentative-sampling": "a hint without a cost, so that any other finding stands before it",
    "slow": "a state that a job leaves with its next step",
    "ended": "a job that has ended has nothing to be asked",
    "unknown": "that too little was seen, by itself no fault",
}
WORKERS = "train_loader.num_workers, train_loader.prefetch_factor = 4, 2"
PERSIST = "vars(train_loader)['persistent_workers'] = True"  # which DataLoader forbids to set
FUSE = "for group in optimizer.param_groups: group['fused'] = True"

JOBS = (
    *named(
        "loading.py",
        input_bound_gnn=WORKERS, input_bound_cnn=WORKERS, input_bound_gpt=WORKERS,
        starved_workers_cnn="train_loader.num_workers = 4", starved_workers_unet="train_loader.num_workers = 8",
        worker_respawn_mlp=PERSIST, worker_respawn_gpt=PERSIST,
        healthy_workers_keep_up="", healthy_little_data_time="", healthy_persistent_workers="",
        healthy_batch_sizes_vary="",
    ),
    *named(
        "pausing.py",
        validation_heavy_cnn="config.validate_every = 1_000_000",
        validation_heavy_gpt="config.validate_every = 1_000_000",
        checkpoint_stall_unet="config.save_every = 1_000_000", checkpoint_stall_mlp="config.save_every = 1_000_000",
        periodic_stall_gpt="config.log_every = 1_000_000", periodic_stall_gc="",
        python_outside_model_cnn="", python_outside_model_rl="", python_outside_model_unet="",
        healthy_moderate_validation="", healthy_rare_checkpoints="", healthy_rare_logs="", healthy_rl="",
    ),
    *named(
        "computing.py",
        small_batch_mlp="", small_batch_gnn="", sequential_scan_gru="", sequential_scan_lstm="",
        micro_batches_gpt="config.micro_batch = 16", micro_batches_gnn="config.micro_batch = 12",
        optimizer_unfused_mlp=FUSE, optimizer_unfused_gnn=FUSE,
        recompilation_gpt="", step_growing_mlp="", step_growing_gpt="", compute_bound_cnn="",
        compiling_mlp="", healthy_few_micro_batches="", healthy_compiled="", healthy_honest_compute="",
        healthy_schedule_and_clipping="", healthy_large_cells="", healthy_gnn="",
    ),
    *named(
        "keeping.py",
        recompute_gpt="model.checkpointing = False", memory_creep_losses="", memory_creep_outputs="",
        frozen_with_gradients_cnn="encoder.requires_grad_(False)", frozen_with_gradients_gan="",
        healthy_frozen_encoder="", healthy_gan="", healthy_bounded_replay="",
    ),
    *named(
        "ranks.py", 2,
        communication_bound_recommender="", communication_bound_buffers="model.broadcast_buffers = False",
        communication_bound_gpt="", small_buckets_chain="", no_sync_missing_recommender="",
        straggler_data="", straggler_compute="", hung_rank_stops="", hung_extra_barrier="",
        healthy_ddp="", healthy_no_sync="",
    ),
    *named("ranks.py", 4, straggler_function="", healthy_four_ranks=""),
    *named("machine.py", 2, cpu_oversubscription_ranks="torch.set_num_threads(1)"),
    *named(
        "machine.py",
        cpu_oversubscription_cnn="torch.set_num_threads(1)", host_contention_cnn="", host_contention_mlp="",
        gil_contention_gpt="monitor.running = False", gil_contention_mlp="monitor.running = False",
        server_saturated="", idle_server="", healthy_monitor="", healthy_server="",
    ),
    *named(
        "by_transformers.py", needs="frameworks",
        input_bound_transformers="", validation_heavy_transformers="", checkpoint_stall_transformers="",
        periodic_stall_transformers="", python_outside_model_transformers="",
        healthy_transformers_evaluates="", healthy_transformers_saves="", healthy_transformers_accumulates="",
    ),
    *named(
        "by_lightning.py", needs="frameworks",
        input_bound_lightning="", validation_heavy_lightning="", checkpoint_stall_lightning="",
        memory_creep_lightning="", small_batch_lightning="", frozen_with_gradients_lightning="",
        healthy_lightning_validates="", healthy_lightning_saves="", healthy_lightning_gan="",
        healthy_lightning_workers="",
    ),
    *named(
        "by_accelerate.py", needs="frameworks",
        micro_batches_accelerate="", starved_workers_accelerate="", healthy_accelerate="",
        healthy_accelerate_workers="",
    ),
    *named(
        "by_accelerate.py", 2, needs="frameworks",
        straggler_accelerate="", no_sync_missing_accelerate="", healthy_accelerate_no_sync="",
    ),
)  # fmt: skip
