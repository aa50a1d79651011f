"""Jobs that stop training for something else, and healthy ones that do so in moderation: `pausing.py JOB`."""

import gc
import itertools
import math
from types import SimpleNamespace

import torch
from families import CNN, GPT, MLP, Poles, Policy, UNet, WithTable
from job import random_batches, ready, run, sgd, train


def evaluate(model, batches):
    """The mean loss over the batches."""
    model.eval()
    total = 0.0
    with torch.no_grad():
        for inputs, targets in batches:
            total += model.loss(model(inputs), targets).item()
    model.train()
    return total / len(batches)


def validating(model, size, every, batches):
    """Trains, and evaluates so many batches every so many steps."""
    optimizer, train_batches = sgd(model), random_batches(model, size)
    validation_batches = [model.batch(size) for _ in range(batches)]
    config = SimpleNamespace(validate_every=every)
    ready()
    for step in itertools.count(1):
        inputs, targets = next(train_batches)
        loss = model.loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % config.validate_every == 0:
            evaluate(model, validation_batches)


def validation_heavy_cnn():
    validating(CNN(), 16, 20, 60)


def validation_heavy_gpt():
    """A little of it after each step."""
    validating(GPT(), 8, 1, 4)


def healthy_moderate_validation():
    """About 5 % of the time."""
    validating(CNN(), 16, 100, 15)


def save_checkpoint(model, optimizer, step):
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, "checkpoint.pt")


def saving(model, size, every):
    optimizer, train_batches = sgd(model), random_batches(model, size)
    config = SimpleNamespace(save_every=every)
    ready()
    for step in itertools.count(1):
        inputs, targets = next(train_batches)
        loss = model.loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % config.save_every == 0:
            save_checkpoint(model, optimizer, step)


def checkpoint_stall_unet():
    saving(WithTable(UNet(), 40), 16, 5)


def checkpoint_stall_mlp():
    saving(WithTable(MLP(), 50), 128, 6)


def healthy_rare_checkpoints():
    saving(WithTable(UNet(), 10), 16, 500)


def log_histograms(model, bins=64):
    """One for each parameter, in Python."""
    for parameter in model.parameters():
        counts = [0] * bins
        for value in parameter.detach().flatten()[:60_000].tolist():
            counts[int(bins / (1 + math.exp(-value)))] += 1


def logging(model, size, every):
    optimizer, train_batches = sgd(model), random_batches(model, size)
    config = SimpleNamespace(log_every=every)
    ready()
    for step in itertools.count(1):
        inputs, targets = next(train_batches)
        loss = model.loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % config.log_every == 0:
            log_histograms(model)


def periodic_stall_gpt():
    logging(GPT(), 8, 10)


def healthy_rare_logs():
    """About 2 % of the time."""
    logging(MLP(), 192, 200)


def periodic_stall_gc():
    """Many objects, through which the job sends the collector every 20 steps."""
    model = CNN()
    index = [{"name": str(n), "parts": [n]} for n in range(600_000)]

    def collect(step):
        if step % 20 == 0:
            gc.collect()

    train(model, random_batches(model, 16), sgd(model), collect)
    return index


def python_outside_model_cnn():
    """What was right and wrong of each class, counted in Python after each step."""
    model = CNN()
    scores = torch.rand(250, 10).tolist()

    def count_confusions(step):
        counts = [[0] * 10 for _ in range(10)]
        for _ in range(60):
            for row in scores:
                counts[row.index(max(row))][step % 10] += 1

    train(model, random_batches(model, 16), sgd(model), count_confusions)


def reinforce(policy, poles):
    """A step of the poles for each step of the optimizer."""
    optimizer, observed = torch.optim.SGD(policy.parameters(), lr=1e-4), torch.tensor(poles.states)
    ready()
    while True:
        choice = torch.distributions.Categorical(logits=policy(observed))
        actions = choice.sample()
        observed, rewards = poles.step(actions.tolist())
        loss = -(choice.log_prob(actions) * rewards).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def python_outside_model_rl():
    reinforce(Policy(256), Poles(64, 1000))


def healthy_rl():
    reinforce(Policy(1024), Poles(512, 1))


def python_outside_model_unet():
    """Gradients are looked at one by one, before the optimizer's step."""
    model = UNet()
    optimizer, train_batches = sgd(model), random_batches(model, 16)
    ready()
    for inputs, targets in train_batches:
        loss = model.loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        largest_gradient(model)
        optimizer.step()


def largest_gradient(model):
    largest = 0.0
    for parameter in model.parameters():
        for value in parameter.grad.flatten().tolist() * 20:
            largest = max(largest, abs(value))
    return largest


if __name__ == "__main__":
    run(globals())
