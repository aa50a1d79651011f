"""Jobs whose own arithmetic is arranged badly, and healthy ones that compute as much: `computing.py JOB`."""

import itertools
import operator
import time
from types import SimpleNamespace

import torch
from families import CNN, GNN, GPT, MLP, Scan, UNet
from job import random_batches, ready, run, sgd, train
from torch import nn


def endless(model, size, optimizer=None, after_step=None):
    train(model, random_batches(model, size), optimizer or sgd(model), after_step)


def small_batch_mlp():
    endless(MLP(16, 250), 2)


def small_batch_gnn():
    endless(GNN(width=8, depth=60, nodes=4, edges=6), 1)


def sequential_scan_gru():
    endless(Scan(length=150), 4)


def sequential_scan_lstm():
    endless(Scan(width=32, length=120, cell=nn.LSTMCell), 8)


def accumulating(model, size, micro_batch):
    """A batch is taken in parts of so many samples, whose gradients add up."""
    optimizer, train_batches = sgd(model), random_batches(model, size)
    config = SimpleNamespace(micro_batch=micro_batch)
    ready()
    for inputs, targets in train_batches:
        optimizer.zero_grad()
        parts = inputs.split(config.micro_batch), targets.split(config.micro_batch)
        for part, wanted in zip(*parts, strict=True):
            loss = model.loss(model(part), wanted) * len(part) / size
            loss.backward()
        optimizer.step()


def micro_batches_gpt():
    accumulating(GPT(length=16), 32, 1)


def micro_batches_gnn():
    accumulating(GNN(depth=8, nodes=20, edges=60), 24, 1)


def healthy_few_micro_batches():
    """Two of a size that keeps the arithmetic busy."""
    accumulating(UNet(), 32, 16)


class WithAdapters(nn.Module):
    """A model with very many small parameters beside it."""

    def __init__(self, model, count):
        super().__init__()
        self.model, self.batch, self.loss = model, model.batch, model.loss
        self.adapters = nn.ParameterList(torch.zeros(16) for _ in range(count))

    def forward(self, x):
        return self.model(x) + torch.stack(list(self.adapters)).mean()


def optimizer_unfused_mlp():
    model = WithAdapters(MLP(320, 3), 900)
    endless(model, 64, torch.optim.AdamW(model.parameters(), foreach=False))


def optimizer_unfused_gnn():
    model = WithAdapters(GNN(), 700)
    endless(model, 16, torch.optim.Adam(model.parameters(), foreach=False, amsgrad=True))


def recompilation_gpt():
    """A sequence of another length in every third step, and a graph for each length."""
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 1 << 30
    model = GPT(width=64, depth=1)
    compiled = torch.compile(model, backend="eager", dynamic=False)
    optimizer = sgd(model)
    ready()
    for step in itertools.count():
        inputs, targets = model.batch(2, length=8 + step // 3 * 37 % 509)
        loss = model.loss(compiled(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def healthy_compiled():
    model = GPT()
    compiled = torch.compile(model, backend="eager")
    compiled(model.batch(8)[0])
    compiled.batch, compiled.loss = model.batch, model.loss
    endless(compiled, 8)


def step_growing_mlp():
    """Each step is compared with all that were before."""
    model, seen = MLP(), []

    def remember(step):
        now = [step / 7] * 3000
        for other in seen:
            sum(map(operator.mul, now, other))
        seen.append(now)

    endless(model, 128, after_step=remember)


def step_growing_gpt():
    """The text that the model reads becomes longer."""
    model = GPT()
    optimizer = sgd(model)
    ready()
    for step in itertools.count():
        inputs, targets = model.batch(2, length=32 + step // 2)
        loss = model.loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def compute_bound_cnn():
    """Forward and backward passes, and next to nothing beside them."""
    endless(CNN(width=48), 32)


def healthy_honest_compute():
    """Large steps of nothing but arithmetic."""
    endless(CNN(width=48), 48)


def healthy_schedule_and_clipping():
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)
    train_batches = random_batches(model, 16)
    ready()
    for inputs, targets in train_batches:
        loss = model.loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()


def healthy_large_cells():
    """A scan of a few cells that are large."""
    endless(Scan(width=384, length=8), 64)


def healthy_gnn():
    endless(GNN(width=64, nodes=400, edges=2000), 12)


def compiling_mlp():
    """A backend that takes minutes."""

    def thorough(graph, inputs):
        end = time.monotonic() + 180
        while time.monotonic() < end:
            optimize_kernels(graph)
        return graph

    model = MLP(512)
    compiled = torch.compile(model, backend=thorough)
    compiled.batch, compiled.loss = model.batch, model.loss
    endless(compiled, 64)


def optimize_kernels(graph):
    return sorted(hash(str(node)) for node in graph.graph.nodes for _ in range(100))


if __name__ == "__main__":
    run(globals())
