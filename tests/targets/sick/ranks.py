"""Jobs of several ranks that wait for each other, and healthy ones: `ranks.py JOB`, started by launcher.py."""

import itertools
import time

import torch
import torch.distributed as dist
from families import CLASSES, GPT, MLP, Classifier, OnDevice, Samples, UNet, WithTable
from job import random_batches, ready, run, sgd, train
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader


def parallel(model, **options):
    """The model under DDP, with its batches and its loss."""
    ddp = DistributedDataParallel(model, **options)
    ddp.batch, ddp.loss = model.batch, model.loss
    return ddp


def endless(model, size, after_step=None):
    train(model, random_batches(model, size), sgd(model), after_step)


class Recommender(Classifier):
    """A large table, of which a batch needs a few rows; its gradient is as large as the table."""

    def __init__(self, rows=230_000, width=32):
        super().__init__()
        self.rows, self.table, self.head = rows, nn.EmbeddingBag(rows, width), nn.Linear(width, CLASSES)

    def batch(self, count):
        return torch.randint(self.rows, (count, 20)), torch.randint(CLASSES, (count,))

    def forward(self, x):
        return self.head(self.table(x))


def communication_bound_recommender():
    endless(parallel(Recommender(), gradient_as_bucket_view=True), 32)


def communication_bound_buffers():
    """DDP sends a table that nobody changes to all ranks, before each forward pass."""
    endless(parallel(WithTable(UNet(), 25)), 8)


def communication_bound_gpt():
    """No DDP: each gradient is averaged after the backward pass."""
    model = GPT(width=256, depth=6, length=16)
    optimizer, train_batches = sgd(model), random_batches(model, 1)
    ready()
    for inputs, targets in train_batches:
        loss = model.loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        average_gradients(model)
        optimizer.step()


def average_gradients(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


class Chain(MLP):
    """As an MLP, but one module: calls of many small ones would be another cause."""

    def __init__(self, width, depth):
        super().__init__(width, 0)
        self.weights = nn.ParameterList(torch.randn(width, width) / width**0.5 for _ in range(depth))

    def forward(self, x):
        for weight in self.weights:
            x = torch.relu(x @ weight)
        return self.head(x)


def small_buckets_chain():
    endless(parallel(Chain(64, 400), bucket_cap_mb=0.001), 32)


def accumulating(model, size, micro_steps, synced):
    optimizer, train_batches = sgd(model), random_batches(model, size)
    ready()
    while True:
        optimizer.zero_grad()
        for micro_step in range(micro_steps):
            model.require_backward_grad_sync = synced or micro_step == micro_steps - 1  # as no_sync() has it
            inputs, targets = next(train_batches)
            loss = model.loss(model(inputs), targets) / micro_steps
            loss.backward()
        optimizer.step()


def no_sync_missing_recommender():
    accumulating(parallel(Recommender(100_000)), 32, 4, synced=True)


def healthy_no_sync():
    accumulating(parallel(OnDevice(0.015, 512, 4)), 32, 2, synced=False)


class Uneven(Samples):
    """On one of the ranks the data are larger."""

    def __getitem__(self, index):
        self.decode(0.004 if dist.get_rank() == 1 else 0.0005)
        return super().__getitem__(index)

    def decode(self, seconds):
        time.sleep(seconds)


def straggler_data():
    model = parallel(OnDevice(0.01))
    train_loader = DataLoader(Uneven(model, 1 << 20), batch_size=8)
    train(model, train_loader, sgd(model))


def straggler_function():
    """Four ranks, of which the third writes a summary after each step."""
    model = parallel(OnDevice(0.015))

    def write_summary(step):
        if dist.get_rank() == 2:
            time.sleep(0.03)

    endless(model, 8, write_summary)


def straggler_compute():
    """One rank's passes take twice as long."""
    endless(parallel(OnDevice(0.03 if dist.get_rank() == 0 else 0.012)), 8)


def healthy_ddp():
    """Two ranks whose communication is hidden behind the backward pass, or nearly."""
    endless(parallel(OnDevice(0.024, 512, 6), bucket_cap_mb=2), 32)


def healthy_four_ranks():
    endless(parallel(OnDevice(0.02)), 8)


def hung_rank_stops():
    """The second rank waits for something else, and the first one for it."""
    model = parallel(OnDevice(0.01))
    optimizer = sgd(model)
    for step, (inputs, targets) in enumerate(random_batches(model, 8)):
        model.loss(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 30:
            ready()
            if dist.get_rank() == 1:
                wait_for_license()


def wait_for_license():
    while True:
        time.sleep(0.5)


def hung_extra_barrier():
    """The first rank alone believes that it is time for a barrier."""
    model = nn.Linear(64, 64)
    for step in itertools.count():
        loss = model(torch.randn(8, 64)).mean()
        time.sleep(0.02)
        dist.all_reduce(loss)
        if step == 30:
            ready()
            if dist.get_rank() == 0:
                dist.barrier()
            else:
                wait_for_license()


if __name__ == "__main__":
    run(globals())
