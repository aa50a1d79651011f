"""The same small model trained by loops of many styles, one after the other: target of tests of evals.

    python styles.py [--sleep S]

Prints "begin <style>" when a style has made its fifth step and "final <style> <hash of the weights>" at its end.  A
style ends when its trainer has made STEPS steps, whoever called them.  It sleeps for S seconds after each step, until
others than its loop have made some.
"""

import hashlib
import sys
import time

import fast_import  # noqa: F401
import torch
from torch import nn
from torch.utils.data import DataLoader

STEPS = 120


def example(index):
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(index))


class Trainer:
    """train_step() as the style has it; all state that a step leaves behind counts in the weights."""

    def __init__(self, style):
        torch.manual_seed(0)
        self.style, self.done, self.own = style, 0, 0  # own: steps of its loop
        self.model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=7)
        data = [example(index) for index in range(3 * STEPS)]
        self.batches = iter(DataLoader(data, batch_size=None) if "loader" in style else data)

    def loss(self):
        return self.model(next(self.batches)).pow(2).mean()

    def train_step(self):
        if "zero_first" in self.style:
            self.optimizer.zero_grad()
        for _ in range(3 if "accumulate" in self.style else 1):
            loss = self.loss()
            (self.scaler.scale(loss) if "scaler" in self.style else loss).backward()
        if "scaler" in self.style:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
        if "zero_first" not in self.style:
            self.optimizer.zero_grad()
        self.done += 1


def pause(trainer, sleep):
    trainer.own += 1
    if trainer.own == trainer.done:
        time.sleep(sleep)


def inline(trainer, sleep):
    """The step is written out in the loop itself; gradients are zeroed by the loop's last line."""
    while trainer.done < STEPS:
        trainer.loss().backward()
        trainer.optimizer.step()
        trainer.done += 1
        if trainer.done == 5:
            print("begin", trainer.style, flush=True)
        pause(trainer, sleep)
        trainer.optimizer.zero_grad()


def called(trainer, sleep):
    losses = []
    while trainer.done < STEPS:
        losses.append(
            trainer.train_step()
        )  # fmt: skip
        if trainer.done == 5:
            print("begin", trainer.style, flush=True)
        pause(trainer, sleep)


def main():
    torch.set_num_threads(1)
    sleep = float(sys.argv[sys.argv.index("--sleep") + 1]) if "--sleep" in sys.argv else 0.0
    print("ready", flush=True)
    for style in (
        "zero_first", "zero_last", "zero_first_loader", "zero_last_loader", "scaler", "scaler_loader",
        "accumulate", "accumulate_loader", "inline", "inline_loader",
    ):  # fmt: skip
        trainer = Trainer(style)
        (inline if "inline" in style else called)(trainer, sleep)
        weights = b"".join(p.detach().numpy().tobytes() for p in trainer.model.parameters())
        print("final", style, trainer.done, hashlib.sha256(weights).hexdigest()[:16], flush=True)


if __name__ == "__main__":
    main()
