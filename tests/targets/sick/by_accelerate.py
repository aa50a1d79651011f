"""Plain loops over what accelerate has prepared, on one rank and on two: `by_accelerate.py JOB`."""

import time

import torch.distributed as dist
from accelerate import Accelerator
from families import CNN, GPT, OnDevice, Samples
from job import ready, run, sgd
from loading import Shards, Stored
from ranks import Recommender
from torch.utils.data import DataLoader


def batches(model, size):
    return DataLoader(Samples(model, 1 << 20), batch_size=size)


def train(model, train_loader, micro_steps=1, after_step=None):
    """accelerate says when gradients are complete: then it steps the optimizer, and only then ranks exchange them."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=micro_steps)
    prepared, optimizer, train_loader = accelerator.prepare(model, sgd(model), train_loader)
    ready()
    while True:
        for inputs, targets in train_loader:
            with accelerator.accumulate(prepared):
                accelerator.backward(model.loss(prepared(inputs), targets))
                optimizer.step()
                optimizer.zero_grad()
            if after_step and accelerator.sync_gradients:
                after_step()


def micro_batches_accelerate():
    model = GPT(length=16)
    train(model, batches(model, 1), 32)


def healthy_accelerate():
    """Two micro-batches a step, of a size that keeps the arithmetic busy."""
    model = GPT()
    train(model, batches(model, 10), 2)


def starved_workers_accelerate():
    model = CNN()
    train(model, DataLoader(Stored(model, 0.006), batch_size=16, num_workers=1))


def healthy_accelerate_workers():
    model = CNN()
    train(model, DataLoader(Shards(model, 0.01, 1 << 20), batch_size=None, num_workers=2))


def straggler_accelerate():
    """The second of two ranks writes a summary after each step."""

    def write_summary():
        if dist.get_rank() == 1:
            time.sleep(0.06)

    model = OnDevice(0.015)
    train(model, batches(model, 8), after_step=write_summary)


def no_sync_missing_accelerate():
    """Gradients of four micro-batches, without accumulate()."""
    model = Recommender(100_000)
    accelerator = Accelerator(cpu=True)
    prepared, optimizer, train_loader = accelerator.prepare(model, sgd(model), batches(model, 32))
    ready()
    for micro_step, (inputs, targets) in enumerate(train_loader, 1):
        accelerator.backward(model.loss(prepared(inputs), targets) / 4)
        if micro_step % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()


def healthy_accelerate_no_sync():
    """Two ranks, which exchange gradients after the second of two micro-batches."""
    model = OnDevice(0.015, 512, 4)
    train(model, batches(model, 32), 2)


if __name__ == "__main__":
    run(globals())
