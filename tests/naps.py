"""Modules that take known times: they nap in forward and, by an autograd function of their own, in backward.

A nap moves a clock that stands still otherwise, so that a test knows to the nanosecond what the rows must say;
or it sleeps, and asks the clock how long that really was.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter_ns
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from probe.agent.taps import optimizer
from probe.agent.taps.modules import backward, forward, module_calls

MS = 1_000_000  # ns


class Clock:
    """What the taps read: 1 ns later at each reading, and by every nap."""

    def __init__(self) -> None:
        self.now = MS

    def __call__(self) -> int:
        self.now += 1
        return self.now

    def sleep(self, ns: int) -> None:
        self.now += ns


class RealClock:
    """The clock that the taps always read."""

    def __call__(self) -> int:
        return perf_counter_ns()

    def sleep(self, ns: int) -> None:
        time.sleep(ns / 1e9)


Spent = dict[tuple[nn.Module, str], int]


class Naps:
    """The clock in use, and how long each module has napped in each stage, in ns."""

    def __init__(self, clock: Clock | RealClock) -> None:
        self.clock = clock
        self.spent: Spent = {}
        self.times: Spent = {}  # how often each has napped

    def nap(self, module: nn.Module, stage: str, ms: float) -> None:
        start = self.clock()
        self.clock.sleep(int(ms * MS))
        key = (module, stage)
        self.spent[key] = self.spent.get(key, 0) + self.clock() - start
        self.times[key] = self.times.get(key, 0) + 1


current = Naps(RealClock())


@contextmanager
def napping(clock: Clock | RealClock) -> Iterator[Naps]:
    """The taps that are made from here on read this clock, and naps take their time by it."""
    global current
    before, current = current, Naps(clock)
    with (
        patch.object(forward, "perf_counter_ns", clock),
        patch.object(module_calls, "perf_counter_ns", clock),
        patch.object(backward, "perf_counter_ns", clock),
        patch.object(optimizer, "perf_counter_ns", clock),
    ):
        yield current
    current = before


class _Nap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, module: nn.Module, forward_ms: float, backward_ms: float) -> Any:
        ctx.module, ctx.ms = module, backward_ms
        current.nap(module, "forward", forward_ms)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        current.nap(ctx.module, "backward", ctx.ms)
        return gradient.clone(), None, None, None


def nap(module: nn.Module, x: Any, forward_ms: float, backward_ms: float) -> Any:
    """x, after a nap on behalf of this module; another one when autograd comes back."""
    return _Nap.apply(x, module, forward_ms, backward_ms)


class Nap(nn.Module):
    """A leaf: a weight and a nap each way."""

    def __init__(self, forward_ms: float = 1, backward_ms: float = 2) -> None:
        super().__init__()
        self.ms = forward_ms, backward_ms
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Any) -> Any:
        return nap(self, x * self.weight, *self.ms)
