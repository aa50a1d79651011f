"""CUDA played in a process without a device: the calls of torch.cuda that the tap makes, on a clock of its own.

A kernel is issued at once and runs later: when the device is through with what was issued before.  The host's clock
(naps.py) goes on meanwhile only when it naps, so that a test knows every time on the device to the nanosecond.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch
from weakref import WeakSet

import naps
import torch
from naps import MS, Clock, RealClock
from torch import nn

from probe.agent.taps import device_policy, graphs
from probe.agent.taps.device import calls
from probe.agent.taps.device import clock as device_clock

MB = 1 << 20


class PlayedCuda:
    """A device that is through with all that was issued at `busy_until`, on the host's clock."""

    def __init__(self, clock: Clock | RealClock) -> None:
        self.clock, self.pid = clock, os.getpid()
        self.busy_until = 0
        self.reached: int | None = None  # how far the device has come, where it does not go with the host's clock
        self.spent: naps.Spent = {}  # ns on the device, by module and stage
        self.capturing = False
        self.initialized = True
        self.current = 0
        self.contexts = {0}  # devices that have one
        self.fails: Exception | None = None
        self.allocated, self.peak = 100 * MB, 100 * MB
        self.made: WeakSet[Event] = WeakSet()
        self.times_made = 0
        self.event: type[Event] = type("PlayedEvent", (Event,), {"played": self})
        self.entered: list[int] = []  # devices of threads that asked for events
        self.capture_modes: list[int] = []  # of those threads

    def launch(self, module: nn.Module, stage: str, ns: int) -> None:
        """A kernel on behalf of a module."""
        self.busy_until = max(self.busy_until, self.clock()) + ns
        self.spent[module, stage] = self.spent.get((module, stage), 0) + ns

    def allocate(self, mb: int) -> None:
        self.allocated += mb * MB
        self.peak = max(self.peak, self.allocated)

    def memory(self, device: int) -> Any:
        numbers = {"current": self.allocated, "peak": self.peak}
        return {"allocated_bytes": {"all": numbers}, "reserved_bytes": {"all": {"current": 200 * MB}}}

    def has_come_to(self, ns: int) -> bool:
        return ns <= (self.clock() if self.reached is None else self.reached)

    def catch_up(self) -> None:
        """Let the device come to the end of what was issued."""
        assert isinstance(self.clock, Clock)
        self.clock.now = max(self.clock.now, self.busy_until)

    def cuThreadExchangeStreamCaptureMode(self, mode: Any) -> int:
        self.capture_modes.append(mode._obj.value)
        return 0


class Event:
    """As torch.cuda.Event: float32 milliseconds between two that the device has come to; of the played device."""

    played: PlayedCuda

    def __init__(self, enable_timing: bool = False) -> None:
        assert enable_timing
        self.at: int | None = None
        self.stream: Any = None
        self.played.made.add(self)
        self.played.times_made += 1

    def __del__(self) -> None:
        if self.at is not None and os.getpid() != self.played.pid:
            os._exit(66)  # as CUDA ends a forked child that lets go of an event

    def record(self, stream: Any) -> None:
        if self.played.fails is not None:
            raise self.played.fails
        assert not self.played.capturing
        assert self.stream in (None, stream), "an event belongs to the device that first recorded it"
        self.stream = stream
        self.at = max(self.played.busy_until, self.played.clock())

    def query(self) -> bool:
        assert self.played.entered and self.played.capture_modes[-1] == 1, "this would break a capture"
        return self.at is None or self.played.has_come_to(self.at)

    def elapsed_time(self, other: Event) -> float:
        assert self.stream == other.stream, "events of two devices cannot be compared"
        assert self.at is not None and other.at is not None and self.query() and other.query()
        milliseconds: float = struct.unpack("f", struct.pack("f", (other.at - self.at) / MS))[0]
        return milliseconds


class OnCuda(nn.Parameter):
    """A parameter that says it is on a device."""

    index = 0
    __torch_function__ = torch._C._disabled_torch_function_impl

    @property
    def device(self) -> Any:
        return torch.device("cuda", self.index)


def to_cuda(model: nn.Module, index: int = 0) -> nn.Module:
    """The model, whose parameters now say so."""
    moved: dict[int, OnCuda] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                if id(parameter) not in moved:
                    moved[id(parameter)] = made = OnCuda(parameter.detach(), parameter.requires_grad)
                    made.index = index
                module._parameters[name] = moved[id(parameter)]
    return model


class Kernels(nn.Module):
    """Issues a kernel in forward and another one in backward, and then its children."""

    def __init__(self, played: PlayedCuda, forward_ms: float, backward_ms: float, *children: nn.Module) -> None:
        super().__init__()
        self.played, self.ms = played, (forward_ms, backward_ms)
        self.weight = nn.Parameter(torch.ones(1))
        self.inner = nn.Sequential(*children) if children else None

    def forward(self, x: Any) -> Any:
        x = _Launch.apply(x * self.weight.detach().requires_grad_(), self, *self.ms)
        return x if self.inner is None else self.inner(x)


class _Launch(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, module: Kernels, forward_ms: float, backward_ms: float) -> Any:
        ctx.module, ctx.ms = module, backward_ms
        module.played.launch(module, "forward", int(forward_ms * MS))
        module.played.allocate(10)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        ctx.module.played.launch(ctx.module, "backward", int(ctx.ms * MS))
        return gradient.clone(), None, None, None


@contextmanager
def played_cuda(clock: Clock | RealClock, left_alone: bool = False) -> Iterator[PlayedCuda]:
    """The taps that are made from here on find a device in use; left_alone: but they stay off."""
    library = ctypes.CDLL
    played = PlayedCuda(clock)
    core = {
        "_cuda_getDevice": lambda: played.current,
        "_cuda_setDevice": played.entered.append,
        "_cuda_hasPrimaryContext": lambda index: index in played.contexts,
        "_cuda_getCurrentStream": lambda index: (7, index, 1),
        "_cuda_memoryStats": played.memory,
    }
    with ExitStack() as patches:
        device_policy.leave_all_alone(left_alone)
        patches.callback(device_policy.leave_all_alone, False)
        for home, name, value in (
            (torch.cuda, "is_initialized", lambda: played.initialized),
            (torch.cuda, "device_count", lambda: 2),
            (torch.cuda, "Event", played.event),
            (torch.cuda, "current_stream", lambda index: ("stream", index)),
            (torch.cuda, "is_current_stream_capturing", lambda: played.capturing),
            (ctypes, "CDLL", lambda name, *args: played if name == "libcuda.so.1" else library(name, *args)),
            (calls, "perf_counter_ns", clock),
            (device_clock, "perf_counter_ns", clock),
            (graphs, "perf_counter_ns", clock),
            *((torch._C, name, value) for name, value in core.items()),
        ):
            patches.enter_context(patch.object(home, name, value, create=True))
        yield played
