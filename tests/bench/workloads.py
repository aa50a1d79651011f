"""The jobs that are measured: each builds a model and its data once and gives the function that does one step.

Called in a worker (worker.py).  The one invariant: one torch thread, a fixed seed, data made once, so that two steps
differ by nothing but what is watching them.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Step = Callable[[], object]
JOB = Path(__file__).resolve().parent.parent / "acceptance" / "document" / "job.py"


@dataclass(frozen=True)
class Shape:
    """Of a GPT: layers of ten modules each."""

    layers: int
    width: int
    batch: int
    length: int


def acceptance_job() -> Any:
    """The module of the acceptance job, imported from its file."""
    if "job" not in sys.modules:
        spec = importlib.util.spec_from_file_location("job", JOB)
        assert spec is not None and spec.loader is not None
        sys.modules["job"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["job"])
    return sys.modules["job"]


def trained(model: nn.Module, loss_of: Callable[[], torch.Tensor], optimizer: torch.optim.Optimizer) -> Step:
    """One training step on the loss; zeroing comes last, as in most loops."""

    def step() -> float:
        loss = loss_of()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    step.model = model  # type: ignore[attr-defined]  # for who compares the weights
    return step


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-4)


def mlp() -> Step:
    """Three modules and as little work as a step can have: what a call costs shows undiluted."""
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
    inputs, targets = torch.randn(16, 32), torch.randint(0, 8, (16,))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    return trained(model, lambda: F.cross_entropy(model(inputs), targets), optimizer)


def gpt(shape: Shape) -> Step:
    job = acceptance_job()
    config = job.Config(
        hidden_size=shape.width, num_layers=shape.layers, max_position_embeddings=shape.length, num_attention_heads=4
    )
    model = job.GPT(config)
    for layer in model.h:
        layer.mlp[1].inplace = False  # torch's full backward hooks refuse what works in place on a module's input
    ids = torch.randint(0, config.vocab_size, (shape.batch, shape.length + 1))
    inputs, targets = ids[:, :-1].contiguous(), ids[:, 1:].flatten()
    return trained(model, lambda: F.cross_entropy(model(inputs).flatten(0, 1), targets), adamw(model))


class Residual(nn.Module):
    """A basic block of a ResNet."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut = nn.Sequential(nn.Conv2d(before, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(out + self.shortcut(x))


def cnn() -> Step:
    """A ResNet of eight blocks: convolutions and batch norms."""
    widths = [16, 16, 16, 32, 32, 64, 64, 128, 128]
    blocks = [Residual(a, b, 1 if a == b else 2) for a, b in pairwise(widths)]
    stem = nn.Sequential(nn.Conv2d(3, widths[0], 3, padding=1, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU())
    model = nn.Sequential(stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 10))
    images, targets = torch.randn(4, 3, 32, 32), torch.randint(0, 10, (4,))
    return trained(model, lambda: F.cross_entropy(model(images), targets), adamw(model))


def transformer() -> Step:
    """A model of the transformers library made from a configuration, nothing downloaded: over 200 modules."""
    from transformers import BertConfig, BertForSequenceClassification  # only in the benchmark's environment

    config = BertConfig(
        vocab_size=1000, hidden_size=64, num_hidden_layers=12, num_attention_heads=4, intermediate_size=128
    )
    model = BertForSequenceClassification(config)
    model.train()
    ids, labels = torch.randint(0, 1000, (4, 32)), torch.randint(0, 2, (4,))
    return trained(model, lambda: model(input_ids=ids, labels=labels).loss, adamw(model))


WORKLOADS: dict[str, Callable[[], Step]] = {
    "mlp": mlp,
    "gpt15": lambda: gpt(Shape(10, 64, 1, 16)),
    "gpt100": lambda: gpt(Shape(10, 128, 5, 64)),
    "cnn": cnn,
    "transformer": transformer,
}
