"""One kind of call, very often: what a recorded row costs is the difference to the bare step, over the calls in it.

Called in a worker.  The one invariant: `forward`, `marked` and `backward` differ by one thing each, so that what the
marks of backward cost to set and to fire are differences between them.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

COUNTS = {"forward": 500, "marked": 500, "backward": 500, "optimizer": 100, "collective": 20}


class Twice(nn.Module):
    """As little as a module can do and still have a backward."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 1.0


def chain(x: torch.Tensor) -> torch.Tensor:
    for module in MODULES:
        x = module(x)
    return x


MODULES = [Twice() for _ in range(COUNTS["forward"])]


def forward() -> Callable[[], object]:
    """Calls that autograd does not see: a row each."""
    x = torch.ones(1)
    return lambda: chain(x)


def marked() -> Callable[[], object]:
    """Calls that autograd sees: a row and two marks each, which are set and never fire."""
    x = torch.ones(1, requires_grad=True)
    return lambda: chain(x)


def backward() -> Callable[[], object]:
    """The same, and the marks fire."""
    x = torch.ones(1, requires_grad=True)
    return lambda: chain(x).backward()


def optimizer() -> Callable[[], object]:
    parameter = nn.Parameter(torch.zeros(1))
    parameter.grad = torch.zeros(1)
    sgd = torch.optim.SGD([parameter], lr=0.1)

    def step() -> None:
        for _ in range(COUNTS["optimizer"]):
            sgd.step()

    return step


def collective() -> Callable[[], object]:
    """On two ranks over gloo; an optimizer steps once, for kernels come and go between two steps only."""
    assert "RANK" in os.environ
    dist.init_process_group("gloo")
    values = torch.ones(1)
    parameter = nn.Parameter(torch.zeros(1))
    parameter.grad = torch.zeros(1)
    sgd = torch.optim.SGD([parameter], lr=0.1)

    def step() -> None:
        for _ in range(COUNTS["collective"]):
            dist.all_reduce(values)
        sgd.step()

    return step


CALLS = {"forward": forward, "marked": marked, "backward": backward, "optimizer": optimizer, "collective": collective}
