"""CUDA played in a process without a device: the calls of torch.cuda that the tap makes, on a clock of its own.

A kernel is issued at once and runs later: when the device is through with what was issued before.  The host's clock
(naps.py) goes on meanwhile only when it naps, so that a test knows every time on the device to the nanosecond.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import naps
import torch
from naps import MS, Clock
from torch import nn

from probe.agent.taps import cuda, device_calls, device_clock

MB = 1 << 20


class PlayedCuda:
    """A device that is through with all that was issued at `busy_until`, on the host's clock."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.busy_until = 0
        self.reached: int | None = None  # how far the device has come, where it does not go with the host's clock
        self.spent: naps.Spent = {}  # ns on the device, by module and stage
        self.capturing = False
        self.initialized = True
        self.current = 0
        self.fails: Exception | None = None
        self.allocated, self.peak = 100 * MB, 100 * MB
        self.made: list[Event] = []
        self.entered: list[int] = []  # devices of threads that asked for events

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
        return ns <= (self.busy_until if self.reached is None else self.reached)


class Event:
    """As torch.cuda.Event: float32 milliseconds between two that the device has come to; of the played device."""

    played: PlayedCuda

    def __init__(self, enable_timing: bool = False) -> None:
        assert enable_timing
        self.at: int | None = None
        self.stream: Any = None
        self.played.made.append(self)

    def record(self, stream: Any) -> None:
        if self.played.fails is not None:
            raise self.played.fails
        assert not self.played.capturing
        assert self.stream in (None, stream), "an event belongs to the device that first recorded it"
        self.stream = stream
        self.at = max(self.played.busy_until, self.played.clock.now)
        # what has come to an end is the device's past, also where it waits for work
        self.played.busy_until = self.at

    def query(self) -> bool:
        assert self.played.entered, "a thread that has not said which device it asks"
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


@contextmanager
def played_cuda(clock: Clock) -> Iterator[PlayedCuda]:
    """The taps that are made from here on find a device in use."""
    played = PlayedCuda(clock)
    made = type("PlayedEvent", (Event,), {"played": played})
    core = {
        "_cuda_getDevice": lambda: played.current,
        "_cuda_setDevice": played.entered.append,
        "_cuda_memoryStats": played.memory,
    }
    with ExitStack() as patches:
        for home, name, value in (
            (torch.cuda, "is_initialized", lambda: played.initialized),
            (torch.cuda, "Event", made),
            (torch.cuda, "current_stream", lambda index: ("stream", index)),
            (torch.cuda, "is_current_stream_capturing", lambda: played.capturing),
            (cuda, "ignore_captures", lambda: None),
            (device_calls, "perf_counter_ns", clock),
            (device_clock, "perf_counter_ns", clock),
            *((torch._C, name, value) for name, value in core.items()),
        ):
            patches.enter_context(patch.object(home, name, value, create=True))
        yield played
