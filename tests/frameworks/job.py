"""Training of one kind: `job.py STYLE [FILE]`, STYLE of loops.py or trainers.py, or a workload of the benchmark.

Prints "ready <pid> rank=<rank>" after ten steps of its own count and "final <rank> <steps> <hash>" at its end: of all
parameters and buffers, bit by bit.  With FILE each step after the tenth takes longer, the last ones much longer, until
that file is there: who watches has time to ask, however fast the steps are.
"""

import hashlib
import os
import sys
import time
from pathlib import Path

import loops
import torch
import trainers  # noqa: F401  # registers its styles
from loops import RANK, STEPS, STYLES

sys.path.insert(1, str(Path(__file__).resolve().parent.parent / "bench"))

import workloads

HURRY = sys.argv[2] if len(sys.argv) > 2 else None
LAST = STEPS - 100  # from here on it waits rather than that it ends before all was asked
global_step = 0  # what the job itself says


def stepped(step):
    """After each step of the job's own count."""
    global global_step
    global_step = step
    if step == 10:
        print(f"ready {os.getpid()} rank={max(RANK, 0)}", flush=True)
    if step >= 10 and HURRY is not None:
        wait(0.05 if step < LAST else 0.8)  # an eval refuses a job that has not stepped for a second


def wait(duration_s):
    """That long, or until it is to hurry."""
    end = time.monotonic() + duration_s
    while time.monotonic() < end and not os.path.exists(HURRY):
        time.sleep(0.01)


@loops.style
def acceptance(stepped):
    """The model, loader with workers, and trainer of the acceptance job; smaller, and in DDP where there are ranks."""
    job = workloads.acceptance_job()
    config = job.Config(hidden_size=32, num_layers=2, max_position_embeddings=16)
    model = job.GPT(config)
    if RANK >= 0:
        model = torch.nn.parallel.DistributedDataParallel(model)
    loader = torch.utils.data.DataLoader(job.Tokens(config), batch_size=4, num_workers=2)
    trainer = job.Trainer(model, torch.optim.AdamW(model.parameters(), lr=1e-3), loader)
    for step in range(STEPS):
        trainer.train_step()
        stepped(step + 1)
    return model


def measured(name):
    """A workload of the benchmark."""
    step = workloads.WORKLOADS[name]()
    for number in range(STEPS):
        step()
        stepped(number + 1)
    return step.model


def digest(model):
    kept = [getattr(each, "to_local", lambda each=each: each)() for each in (*model.parameters(), *model.buffers())]
    return hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in kept)).hexdigest()[:16]


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    name = sys.argv[1]
    if RANK >= 0:
        torch.distributed.init_process_group("gloo")
    model = STYLES[name](stepped) if name in STYLES else measured(name)
    print(f"final {max(RANK, 0)} {global_step} {digest(model)}", flush=True)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
