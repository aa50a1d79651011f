"""Loops of several styles, and sharded training, on a tiny model and made-up data.

Called by job.py and test_styles.py with what is to be told after each step of the loop's own count.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Stepped = Callable[[int], object]
STEPS = 200
RANK = int(os.environ.get("RANK", "-1"))
STYLES: dict[str, Callable[[Stepped], Any]] = {}


def style(train):
    """Registers a function that trains, tells each step, and returns the model."""
    STYLES[train.__name__] = train
    return train


def batch(number):
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(number * 8 + max(RANK, 0)))


def net():
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))


def loop(stepped, model, optimizer, after=lambda: None):
    for step in range(STEPS):
        model(batch(step)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        after()
        stepped(step + 1)
    return model


@style
def one(stepped):
    model = net()
    return loop(stepped, model, torch.optim.AdamW(model.parameters(), lr=0.01))


@style
def scheduler(stepped):
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return loop(stepped, model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS).step)


@style
def sgd_scheduler(stepped):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    return loop(stepped, model, optimizer, lambda: scheduler.step())


@style
def accumulation(stepped):
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(STEPS):
        for micro in range(3):
            (model(batch(3 * step + micro)).pow(2).mean() / 3).backward()
        optimizer.step()
        optimizer.zero_grad()
        stepped(step + 1)
    return model


@style
def scaler(stepped):
    """Every seventh gradient is infinite: the scaler does not step the optimizer, and the job does not count it."""
    model, scale, step, number = net(), torch.amp.GradScaler("cpu", init_scale=8.0), 0, 0
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    while step < STEPS:
        number += 1
        loss = model(batch(number)).pow(2).mean() * (float("inf") if number % 7 == 0 else 1.0)
        scale.scale(loss).backward()
        scale.step(optimizer)
        scale.update()
        optimizer.zero_grad()
        if number % 7:
            step += 1
            stepped(step)
    return model


@style
def two(stepped):
    """Two optimizers in one step, each with half of the parameters."""
    model = net()
    sgd, adamw = torch.optim.SGD(model[0].parameters(), lr=0.01), torch.optim.AdamW(model[2].parameters(), lr=0.01)
    for step in range(STEPS):
        model(batch(step)).pow(2).mean().backward()
        adamw.step()
        sgd.step()
        sgd.zero_grad()
        adamw.zero_grad()
        stepped(step + 1)
    return model


@style
def gan(stepped):
    """Generator and discriminator take turns; an iteration is a step of both."""
    generator, judge = nn.Linear(8, 8), net()
    first, second = (torch.optim.AdamW(each.parameters(), lr=0.01) for each in (judge, generator))
    for step in range(STEPS):
        first.zero_grad()
        (judge(generator(batch(step)).detach()) - judge(batch(step + 1))).mean().backward()
        first.step()
        second.zero_grad()
        (-judge(generator(batch(step)))).mean().backward()
        second.step()
        stepped(step + 1)
    return nn.ModuleList([generator, judge])


@style
def lbfgs(stepped):
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    for step in range(STEPS):

        def closure(step=step):
            optimizer.zero_grad()
            loss = model(batch(step)).pow(2).mean()
            loss.backward()
            return loss

        optimizer.step(closure)
        stepped(step + 1)
    return model


@style
def inference(stepped):
    """No optimizer: the outermost call of the model is the step."""
    model = net().eval()
    with torch.no_grad():
        for step in range(STEPS):
            model(batch(step))
            stepped(step + 1)
    return model


@style
def zero(stepped):
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(net())
    return loop(stepped, model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01))


@style
def fsdp1(stepped):
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(net(), device_id=torch.device("cpu"))
    return loop(stepped, model, torch.optim.AdamW(model.parameters(), lr=0.01))


@style
def fsdp2(stepped):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = net()
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    return loop(stepped, model, torch.optim.AdamW(model.parameters(), lr=0.01))
