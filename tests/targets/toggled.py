"""Trains a model under DDP and a sharded one in turns, and tells its weights now and then: target of soaks.

    python toggled.py STEPS [--tell 1000] [--sleep 0.0]

Prints "at STEP RANK DIGEST" every so many steps, and ends in order after STEPS.
"""

import argparse
import hashlib
import os
import time

import fast_import  # noqa: F401
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel


def network():
    torch.manual_seed(0)
    return nn.Sequential(*[layer for _ in range(3) for layer in (nn.Linear(64, 64), nn.ReLU())])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("steps", type=int)
    parser.add_argument("--tell", type=int, default=1000)
    parser.add_argument("--sleep", type=float, default=0.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    replicated, sharded = DistributedDataParallel(network(), bucket_cap_mb=0.02), network()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in sharded:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    models = [(model, torch.optim.AdamW(model.parameters())) for model in (replicated, sharded)]
    noise = torch.Generator().manual_seed(dist.get_rank())
    for step in range(1, options.steps + 1):
        for model, optimizer in models:
            model(torch.randn(8, 64, generator=noise)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        time.sleep(options.sleep)
        if step == 1:
            told("ready")
        if step % options.tell == 0:
            told(f"at {step} {dist.get_rank()} {digest(replicated, sharded)}")
    dist.destroy_process_group()


def told(line):
    os.write(1, f"{line}\n".encode())  # at once and whole: the ranks share the pipe


def digest(*models):
    whole = hashlib.sha256()
    for model in models:
        for parameter in model.parameters():
            local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
            whole.update(local.detach().numpy().tobytes())
    return whole.hexdigest()[:16]


main()
