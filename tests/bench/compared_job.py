"""A job whose steps take so many percent longer than they would: target of compared.py.

    python compared_job.py PERCENT [SLEEP_MS]

The head of its model takes that share of what the step before took without it, so that the ratio is known whatever
the machine does meanwhile.  SLEEP_MS: a sleep in each step, as that of a host which waits for its device.
"""

from __future__ import annotations

import sys
import time

import torch
from torch.utils.data import DataLoader, TensorDataset


class Head(torch.nn.Module):
    def __init__(self, slower: float) -> None:
        super().__init__()
        self.linear, self.slower, self.spun_s, self.step_s = torch.nn.Linear(256, 10), slower, 0.0, 0.0

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        begun = time.perf_counter()
        until = begun + self.slower * self.step_s
        while time.perf_counter() < until:
            pass
        self.spun_s = time.perf_counter() - begun
        return self.linear(features)


def main(slower: float, sleep_s: float) -> None:
    torch.manual_seed(0)
    body = [layer for _ in range(2) for layer in (torch.nn.Linear(256, 256), torch.nn.ReLU())]
    head = Head(slower)
    model = torch.nn.Sequential(*body, head)
    optimizer = torch.optim.AdamW(model.parameters())
    loader = DataLoader(TensorDataset(torch.randn(1600, 256), torch.randint(10, (1600,))), batch_size=8)
    print("ready", flush=True)
    ended = time.perf_counter()
    while True:
        for features, targets in loader:
            time.sleep(sleep_s)
            torch.nn.functional.cross_entropy(model(features), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
            now = time.perf_counter()
            head.step_s, ended = now - ended - head.spun_s, now


if __name__ == "__main__":
    main(float(sys.argv[1]) / 100, float((sys.argv[2:] or ["0"])[0]) / 1e3)
