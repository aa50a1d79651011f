"""Jobs whose steps no optimizer ends, or not yet: target of tests of what is then called a step.

    python byhand.py update|serve|serve_together|validate

update: trains without torch.optim, by changing the parameters itself.  serve: only calls its model.
serve_together: so do ranks, which add up what each has of the result.  validate: has an
optimizer, and calls its model for ten seconds before it trains.
"""

import sys
import time

import fast_import  # noqa: F401
import torch
from torch import nn


def update(model):
    step = 0
    while True:
        step += 1
        loss = model(torch.randn(4, 8)).square().mean()
        model.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            parameter.data.add_(parameter.grad, alpha=-0.01)
        time.sleep(0.02)


def serve(model):
    while True:
        with torch.no_grad():
            model(torch.randn(4, 8))
        time.sleep(0.02)


class Shared(nn.Module):
    """As a part of a model under tensor parallelism."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        out = self.model(x)
        torch.distributed.all_reduce(out)
        return out


def serve_together(model):
    torch.distributed.init_process_group("gloo")
    serve(Shared(model))


def validate(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model.eval()
    end = time.monotonic() + 10
    while time.monotonic() < end:
        with torch.no_grad():
            model(torch.randn(4, 8))
        time.sleep(0.005)
    model.train()
    print("trains", flush=True)
    while True:
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        time.sleep(0.02)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print("ready", flush=True)
    globals()[sys.argv[1]](nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)))
