"""The ten jobs on which `what_peers_say.py` compares tools, and what counts as an answer; both chosen before any ran.

Ten codes of the zoo, over GNN, U-Net, GPT, RL, MLP, CNN, a recommender and a model that sleeps as on a device.  A job's
words are looked for, whatever their case, in what a tool printed, the same for all tools:

- named: it says the cause.  shown: it shows time or memory where the cause is, and who reads it must conclude.
- places: where the cause was planted, a function, a rank or what holds it; none if it is the whole model.
- remedy: what would cure it; "" if nothing that a tool can print does.

Some of the patterns were changed once answers were there: they took a function's name, a heading or the question itself
for an answer, or missed one: how torch calls that optimizer, `waiting` beside `waits`, the input of a late rank.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Planted(NamedTuple):
    """name: the job's in the zoo; cause: what was planted, for people; the rest: patterns."""

    name: str
    cause: str
    named: str
    shown: str
    places: tuple[str, ...]
    remedy: str


class Heard(NamedTuple):
    """cause: `named`, `also` named, beside a verdict that is another, `shown` or `no`; places: those that were told;
    remedy: whether one was."""

    cause: str
    places: tuple[str, ...]
    remedy: bool


TEN = (
    Planted(
        "input_bound_gnn", "graphs are built in Python, in the trainer",
        r"input.bound|waits for (its )?(data|train_loader)", r"input wait|_next_data|dataloader",
        ("build_graph",), r"num_workers.*=|increase workers",
    ),
    Planted(
        "starved_workers_unet", "two workers for storage that wants more",
        r"starved|input.bound|too few workers|waits for (its )?(data|train_loader)",
        r"input wait|_try_get_data|read_file",
        ("read_file",), r"num_workers.*=|increase workers",
    ),
    Planted(
        "validation_heavy_gpt", "four batches are evaluated after each step",
        r"validation.heavy|(validat|evaluat)\w+ takes", r"\bevaluate\b|residual.heavy",
        ("evaluate",), r"validate_every|less often|fewer batches",
    ),
    Planted(
        "python_outside_model_rl", "poles on carts are simulated in Python between two passes",
        r"python.outside|outside (of )?(the )?model", r"residual.heavy|\bsimulate\b",
        ("simulate",), r"vectori|numba|tensors|out of (the )?loop|in a worker",
    ),
    Planted(
        "small_batch_mlp", "250 layers for two samples: each call costs more than its arithmetic",
        r"small.batch|launch.bound|overhead.bound|batch (is )?too small", r"_call_impl",
        (), r"(larger|bigger|raise|increase)\b[^.\n]*batch|batch_size|torch\.compile",
    ),
    Planted(
        "optimizer_unfused_mlp", "AdamW goes through 900 small parameters one by one",
        r"unfused|not fused|optimizer.{0,40}(bound|heavy)",
        r"_single_tensor_adam|optimizer +[\d.]+ ms|optim|AdamW +│ post",
        ("AdamW|Adam",), r"(fused|foreach)('\])? *=",
    ),
    Planted(
        "memory_creep_losses", "losses of held-out samples are kept, each with its graph",
        r"memory.creep|memory.rising|leak|memory (grows|creeps)|grows by", r"memory.{0,40}(rising|grew|growth|trend)",
        ("held_out_losses",), r"detach|\.item\(\)|float\(",
    ),
    Planted(
        "no_sync_missing_recommender", "DDP averages gradients in each of four micro-batches",
        r"no.sync", r"communicat|all.?reduce|collective|reducer",
        ("accumulating",), r"no_sync",
    ),
    Planted(
        "straggler_data", "one rank's samples take eight times as long to decode",
        r"straggler|rank 1 (is|comes) (late|slow)", r"\bdecode\b|input.bound",
        ("rank 1|R1/N0 waited", "decode"), r"balance|shard|slow rank|num_workers.*=",
    ),
    Planted(
        "hung_rank_stops", "one rank waits for a license, the other one for its gradients",
        r"\bhung\b|\bstuck\b|deadlock|wait(s|ing) for rank", r"wait_for_license",
        ("rank 1|R1/N0 waited", "wait_for_license"), "",
    ),
)  # fmt: skip


def heard(job: Planted, said: str) -> Heard:
    """What of a planted cause is in what a tool printed, without the job's own name, which tells it."""
    said = said.replace(job.name, "JOB")
    looked = {"named": (job.named, verdict(said) or said), "also": (job.named, said), "shown": (job.shown, said)}
    cause = next((word for word, (pattern, text) in looked.items() if found(pattern, text)), "no")
    places = tuple(place.partition("|")[0] for place in job.places if found(rf"\b({place})\b", said))
    return Heard(cause, places, bool(job.remedy) and found(job.remedy, said))


def quoted(job: Planted, said: str) -> str:
    """The verdict, if the tool has one, and the first line that names the cause, or the place, or shows it, if not."""
    lines = [line.strip() for line in said.splitlines()]
    first = verdict(said)
    wanted = (job.named,) if first else (job.named, *reversed(job.places), job.shown)
    told = [line for pattern in wanted for line in lines if found(rf"\b({pattern})", line.replace(job.name, "JOB"))]
    return " … ".join(dict.fromkeys([first] * bool(first) + ([] if found(job.named, first) else told[:1])))


def verdict(said: str) -> str:
    return " ".join(line.strip() for line in said.splitlines() if line.strip().startswith(("Verdict", "Why:")))


def found(pattern: str, said: str) -> bool:
    return re.search(pattern, said, re.IGNORECASE) is not None
