"""Models of known times under DDP and FSDP, tapped in this very process: run by torchrun, on gloo.

Each rank prints "times <JSON>" for every kind of wrapping: rows as [module, class, stage, ms], and the naps in
backward.  At last the ranks keep to the clock on the wall, and one is late.
"""

import json
import os
import sys
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import fast_import  # noqa: F401
import torch
import torch.distributed as dist
from naps import Clock, Nap, RealClock, napping
from tapped import tapped
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

LATE_MS = 300  # how much longer the last rank takes for a backward


def model():
    return nn.Sequential(Nap(1, 2), nn.Sequential(Nap(2, 3), nn.ReLU(inplace=True)), Nap(3, 4))


def ddp(late):
    made = model()
    made[0].ms = (1, 2 + late)
    return DistributedDataParallel(made)


def fsdp1(late):
    made = model()
    made[1] = FullyShardedDataParallel(made[1], device_id=torch.device("cpu"))
    return FullyShardedDataParallel(made, device_id=torch.device("cpu"))


def fsdp2(late):
    made = model()
    fully_shard(made[1])
    return fully_shard(made)


def show(kind, clock, late=0):
    with napping(clock) as naps, tapped() as taps:
        made = globals()[kind](late)
        for _ in range(2):
            made(torch.ones(3)).sum().backward()
        times = defaultdict(float)
        for row in taps.table():
            times[row["module"], row["module_type"], row["stage"]] += row["duration"] * 1e3
    spent = sum(ns for (_, stage), ns in naps.spent.items() if stage == "backward") / 1e6
    rows = [[*key, ms] for key, ms in times.items()]
    told = {"kind": kind, "late": late, "exact": isinstance(clock, Clock), "rows": rows, "naps": spent}
    os.write(1, f"times {json.dumps(told)}\n".encode())  # at once and whole: two ranks write to the same file


def main():
    dist.init_process_group("gloo")
    for kind in ("ddp", "fsdp1", "fsdp2"):
        show(kind, Clock())
    show("ddp", RealClock(), LATE_MS if dist.get_rank() else 0)
    dist.destroy_process_group()
    print("ready", flush=True)


if __name__ == "__main__":
    main()
