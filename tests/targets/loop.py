"""A small training loop, alone or as a rank over gloo: `loop.py [--sleep SECONDS]`; says `ready` after a step."""

import argparse
import itertools
import os
import time

import fast_import  # noqa: F401
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sleep", type=float, default=0.01, help="seconds between two steps")
    sleep = parser.parse_args().sleep
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if dist.is_initialized() else 0
    batch_size = 4
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    train_model = DistributedDataParallel(model) if dist.is_initialized() else model
    optimizer = torch.optim.SGD(train_model.parameters(), lr=0.01)
    for step in itertools.count():
        loss = train_model(torch.randn(batch_size, 8)).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(sleep)
        if step == 0:
            print(f"ready {os.getpid()} rank={rank}", flush=True)


if __name__ == "__main__":
    main()
