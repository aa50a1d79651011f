"""Trainings whose device memory is known, on the played runtime: target of tests.

`allocating.py KIND`: one of KINDS; it trains until it is ended, and says `ready` after the third step.
"""

import itertools
import os
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "targets"))

import fast_import  # noqa: F401
import torch
from torch import nn
from torch.nn import functional

MB = 1 << 20
WIDTH, BATCH = 4096, 1024
HEADS, DEPTH, LENGTH, TOKENS = 8, 6, 256, 8192
SLEEP_S = 0.02


class Block(nn.Module):
    def __init__(self, width=1024):
        super().__init__()
        self.before, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        wide, narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.mlp = nn.Sequential(nn.LayerNorm(width), wide, nn.GELU(), narrow)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.qkv(self.before(x)).view(batch, length, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(x)


class GPT(nn.Module):
    def __init__(self, width=1024):
        super().__init__()
        self.token, self.place = nn.Embedding(TOKENS, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(DEPTH))
        self.head = nn.Linear(width, TOKENS, bias=False)

    def forward(self, tokens):
        x = self.token(tokens) + self.place(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Pausing(nn.Module):
    """From the fourth step on its forward does not end."""

    steps = 0

    def forward(self, x):
        self.steps += 1
        if self.steps > 3:
            os.write(1, b"pauses\n")
            time.sleep(1000)
        return x


def layers():
    return nn.Sequential(*[part for _ in range(4) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU())])


def mlp():
    return layers(), lambda: torch.randn(BATCH, WIDTH, device="cuda")


def gpt():
    return GPT(), lambda: torch.zeros(8, LENGTH, dtype=torch.long, device="cuda")


def leaking():
    """Each step leaves a megabyte, and the graph of a forward that has no backward."""
    return mlp()


def recording():
    """It records the history of its allocator itself."""
    torch.cuda.memory._record_memory_history(max_entries=1000)
    return mlp()


def forward():
    """It stops in the midst of the fourth one."""
    return nn.Sequential(layers(), Pausing(), layers()), mlp()[1]


KINDS = {each.__name__: each for each in (mlp, gpt, leaking, recording, forward)}


def train(kind):
    with torch.device("cuda"):
        model, batch = KINDS[kind]()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    kept, ahead = [], {}
    for number in itertools.count(1):
        optimizer.zero_grad()
        model(batch()).square().mean().backward()
        if kind == "leaking":
            kept.append(torch.empty(MB, dtype=torch.uint8, device="cuda"))
            ahead["out"] = model(batch())
        optimizer.step()
        time.sleep(SLEEP_S)
        if number == 3:
            os.write(1, f"ready {os.getpid()}\n".encode())


if __name__ == "__main__":
    train(sys.argv[1])
