"""Ranks of which one may be slower than the others, in its compute or in its loader: target of tests.

    python straggling.py [--late RANK] [--by 0.1] [--in compute|loader] [--real] [--step 0.1]

Each step waits for the loader (a quarter of it) and computes (the rest), which is a sleep with 2 % of jitter; with
--real it is arithmetic, a rank on a core of its own.  The late rank takes so much of a step more there.
"""

import argparse
import itertools
import os
import random
import time

import fast_import  # noqa: F401
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader


class Work(nn.Module):
    """Takes a time, half of it in forward and half in backward."""

    def __init__(self, spend):
        super().__init__()
        self.spend, self.linear = spend, nn.Linear(16, 16)

    def forward(self, x):
        return Half.apply(self.linear(x), self.spend)


class Half(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, spend):
        ctx.spend = spend
        spend()
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.spend()
        return gradient, None


class Data:
    def __init__(self, spend):
        self.spend = spend

    def __len__(self):
        return 10_000_000

    def __getitem__(self, index):
        self.spend()
        return torch.ones(16)


def sleeping(seconds, jitter):
    return lambda: time.sleep(max(0.0, jitter.gauss(seconds, 0.02 * seconds)))


def a_second():
    """How many products this machine computes in a second, measured by one rank while the others wait."""
    a, count = torch.randn(96, 96), torch.zeros(1)
    end = time.perf_counter() + 1
    while dist.get_rank() == 0 and time.perf_counter() < end:
        a @ a
        count += 1
    dist.broadcast(count, 0)
    return int(count)


def computing(products):
    a = torch.randn(96, 96)

    def spend():
        for _ in range(products):
            a @ a

    return spend


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--late", type=int, default=-1)
    parser.add_argument("--by", type=float, default=0.1)
    parser.add_argument("--in", dest="place", default="compute")
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--step", type=float, default=0.1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    takes = {"compute": 0.75 * options.step, "loader": 0.25 * options.step}
    takes[options.place] += options.step * options.by * (rank == options.late)
    jitter, half = random.Random(rank + 1), takes["compute"] / 2
    if options.real:
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
        compute = computing(int(half * a_second()))
    else:
        compute = sleeping(half, jitter)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 16), Work(compute)))
    loader = DataLoader(Data(sleeping(takes["loader"], jitter)), batch_size=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step, batch in zip(itertools.count(), loader):
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 1:
            print("ready", flush=True)


main()
