"""A training whose every phase takes a known time, with its own clock around each: target of tests.

    python phased.py TIMES_FILE [--accumulate] [--gan] [--closure] [--validate] [--by-hand] [--workers N]

--closure: an optimizer's closure loads, runs and differentiates, as Lightning's does.  --by-hand: no optimizer.  One
JSON array a step goes to TIMES_FILE: [step, data, forward, backward, validation, optimizer] in seconds.
"""

import json
import os
import sys
import time

import fast_import  # noqa: F401
import torch
from torch import nn
from torch.utils.data import DataLoader

# seconds beside the work itself, long beside what recording costs on a slow machine, some 0.7 ms a step
NAPS = {"data": 0.008, "forward": 0.012, "backward": 0.016, "validation": 0.0, "optimizer": 0.008}
clock = time.perf_counter


class Slow:
    def __init__(self, nap):
        self.nap = nap

    def __len__(self):
        return 10_000_000

    def __getitem__(self, index):
        time.sleep(self.nap)
        return torch.randn(16, 64)


class Nap(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        time.sleep(NAPS["forward"])
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(NAPS["backward"])
        return gradient


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 64)

    def forward(self, x):
        return Nap.apply(self.linear(x)).square().mean()


class Sleepy(torch.optim.AdamW):  # which counts its steps, so that the numbers are those in the file
    def step(self, closure=None):
        time.sleep(NAPS["optimizer"])
        return super().step(closure)


class Clock:
    """Adds up the time of each phase of a step."""

    def __init__(self):
        self.spent = dict.fromkeys(NAPS, 0.0)

    def __call__(self, phase, call, *args, **kwargs):
        """What the call itself times counts there only."""
        start, inside = clock(), sum(self.spent.values())
        result = call(*args, **kwargs)
        self.spent[phase] += clock() - start - (sum(self.spent.values()) - inside)
        return result


def train_step(timed, batches, trained, micro_steps):
    for model, optimizer in trained:

        def work(model=model):
            for _ in range(micro_steps):
                batch = timed("data", next, batches)
                loss = timed("forward", model, batch)
                timed("backward", loss.backward)
            return loss

        if "--closure" in sys.argv:
            timed("optimizer", optimizer.step, work)
        else:
            work()
            if optimizer:
                timed("optimizer", optimizer.step)
            else:
                for parameter in model.parameters():
                    parameter.data.add_(parameter.grad, alpha=-0.01)
        model.zero_grad()
        if "--validate" in sys.argv:
            model.eval()
            with torch.no_grad():
                timed("validation", model, torch.randn(5, 64))
            model.train()


def main():
    torch.set_num_threads(1)
    trained = []
    for _ in range(2 if "--gan" in sys.argv else 1):
        model = Model()
        trained.append((model, None if "--by-hand" in sys.argv else Sleepy(model.parameters(), lr=0.01)))
    workers = int(sys.argv[sys.argv.index("--workers") + 1]) if "--workers" in sys.argv else 0
    # one worker takes so much longer for a batch than the rest of a step does that each step waits for it; two do not
    nap = sum(NAPS.values()) + NAPS["data"] if workers == 1 else NAPS["data"]
    train_loader = DataLoader(Slow(nap), batch_size=None, num_workers=workers)
    batches = iter(train_loader)
    with open(sys.argv[1], "w", buffering=1) as times:
        for step in range(100_000):
            timed = Clock()
            train_step(timed, batches, trained, 3 if "--accumulate" in sys.argv else 1)
            times.write(json.dumps([step, *timed.spent.values()]) + "\n")
            if step == 3:
                print(f"ready {os.getpid()}", flush=True)


if __name__ == "__main__":
    main()
