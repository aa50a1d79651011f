"""Jobs whose own arithmetic is arranged badly, and healthy ones that compute as much: `computing.py JOB`."""

import itertools
import time
from types import SimpleNamespace

import torch
from families import CNN, GNN, GPT, MLP, Scan, UNet, gan
from job import random_batches, ready, run, train
from torch import nn


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=1e-3)


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


def recompute_gpt():
    model = GPT(width=128, depth=4, length=96)
    model.checkpointing = True
    endless(model, 8)


def optimizer_unfused_mlp():
    model = MLP(32, 300)
    endless(model, 256, torch.optim.AdamW(model.parameters(), foreach=False))


def optimizer_unfused_gnn():
    model = GNN(width=16, depth=80, nodes=8, edges=16)
    endless(model, 8, torch.optim.Adam(model.parameters(), foreach=False, amsgrad=True))


def recompilation_gpt():
    """A sequence of another length in each step, and a graph for each length."""
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 1 << 30
    model = GPT()
    compiled = torch.compile(model, backend="eager", dynamic=False)
    optimizer = sgd(model)
    ready()
    for step in itertools.count():
        inputs, targets = model.batch(2, length=8 + step * 37 % 2048)
        loss = model.loss(compiled(inputs[:, :200]), targets[:, :200]) if step % 8 else compiled(inputs).mean()
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
    """Each step looks through all that was seen before."""
    model, seen = MLP(512), []

    def remember(step):
        seen.append(step * 7919 % 1009)
        for each in range(40):
            seen.count(each)

    endless(model, 64, after_step=remember)


def step_growing_gpt():
    """The text that the model reads becomes longer."""
    model = GPT()
    optimizer = sgd(model)
    ready()
    for step in itertools.count():
        inputs, targets = model.batch(2, length=32 + step // 2)
        loss = model.loss(model(inputs % 256), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def frozen_with_gradients_cnn():
    """The optimizer has the head's parameters only, and the encoder is differentiated all the same."""
    encoder, head = CNN(), nn.Linear(10, 10)
    optimizer, train_batches = sgd(head), random_batches(encoder, 32)
    ready()
    for inputs, targets in train_batches:
        features = encoder(inputs)
        loss = encoder.loss(head(features), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def healthy_frozen_encoder():
    encoder, head = CNN().requires_grad_(False), MLP(10, 2)
    optimizer, train_batches = sgd(head), random_batches(encoder, 64)
    ready()
    for inputs, targets in train_batches:
        with torch.no_grad():
            features = encoder(inputs)
        loss = encoder.loss(head(features), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def adversarial(size, detached):
    """A generator and a discriminator in turns."""
    generator, discriminator = gan()
    generator_optimizer, discriminator_optimizer = sgd(generator), sgd(discriminator)
    real = torch.randn(size, 768)
    ready()
    while True:
        fake = generator(torch.randn(size, 64))
        discriminator_optimizer.zero_grad()
        judged = discriminator(fake.detach() if detached else fake)
        (judged.mean() - discriminator(real).mean()).backward()
        discriminator_optimizer.step()

        generator_optimizer.zero_grad()
        (-discriminator(generator(torch.randn(size, 64))).mean()).backward()
        generator_optimizer.step()


def frozen_with_gradients_gan():
    """The discriminator's pass goes back through the generator, whose gradients are thrown away."""
    adversarial(128, detached=False)


def healthy_gan():
    adversarial(128, detached=True)


def memory_creep_losses():
    """Losses are kept for the log, and with each of them its graph."""
    model, losses = CNN(width=16, size=16), []
    optimizer, train_batches = sgd(model), random_batches(model, 16)
    ready()
    for inputs, targets in train_batches:
        loss = model.loss(model(inputs), targets)
        losses.append(loss)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def memory_creep_outputs():
    """What the model said is kept, for a report that never comes."""
    model = UNet()
    optimizer, train_batches, predictions = sgd(model), random_batches(model, 16), []
    ready()
    for inputs, targets in train_batches:
        output = model(inputs)
        predictions.append(output.detach())
        loss = model.loss(output, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def healthy_bounded_replay():
    """Memory that grows no more once the buffer is full."""
    model, replay = MLP(512), []

    def remember(step):
        replay.append(torch.randn(64, 512))
        del replay[:-100]

    endless(model, 64, after_step=remember)


def healthy_honest_compute():
    """Large steps of nothing but arithmetic."""
    endless(CNN(width=48), 48)


def healthy_schedule_and_clipping():
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters())
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
    endless(GNN(width=64, nodes=400, edges=2000), 32)


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
