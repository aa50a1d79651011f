"""A training that leaks: each step leaves one tensor, of 4096 bytes as a rule, with each of many holders.

Classes of it notice if any code of theirs is run by who looks: it then says `ran WHAT`.  It says `kept` if a tensor
that it has dropped is alive a step later, and `weights DIGEST` every 50 steps.
"""

from __future__ import annotations

import collections
import copy
import functools
import hashlib
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import fast_import  # noqa: F401
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

SIZE = 32
CACHE: dict[str, torch.Tensor] = {}
watched = threading.local()


def ran(what: object) -> None:
    if getattr(watched, "inside", True):
        print("ran", what, flush=True)


def batch() -> torch.Tensor:
    return torch.randn(SIZE, SIZE)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(SIZE, SIZE), nn.Sequential(nn.Linear(SIZE, SIZE), nn.Tanh())
        self.register_buffer("scale", torch.ones(SIZE, SIZE))
        self.stats: dict[str, list[torch.Tensor]] = collections.defaultdict(list)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))  # type: ignore[no-any-return]


class Tracker:
    __slots__ = ("outputs",)

    def __init__(self) -> None:
        self.outputs: dict[str, list[torch.Tensor]] = {"logits": []}


class Registry:
    store: list[torch.Tensor] = []  # noqa: RUF012


class Loop:
    def __init__(self, x: torch.Tensor) -> None:
        self.x, self.me = x, self


class Meta(type):
    def __getattribute__(cls, name: str) -> Any:
        ran(f"metaclass {name}")
        return super().__getattribute__(name)


class Hostile(metaclass=Meta):
    def __init__(self) -> None:
        object.__setattr__(self, "inside", [])

    def __getattribute__(self, name: str) -> Any:
        ran(f"attribute {name}")
        return super().__getattribute__(name)

    def __hash__(self) -> int:
        ran("hash")
        return 0

    def __eq__(self, other: object) -> bool:
        ran("eq")
        return False


class Table(dict[str, Any]):
    def items(self) -> Any:
        ran("items")
        return super().items()

    def __iter__(self) -> Iterator[str]:
        ran("iter")
        return super().__iter__()


class Wrapped(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        ran(f"torch_function {function}")
        return super().__torch_function__(function, types, args, kwargs or {})


class Mode(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        ran(f"mode {function}")
        return function(*args, **(kwargs or {}))


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.mine = x.detach() + 1
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 2


def unpack(held: Any) -> Any:
    ran("a hook of a saved tensor")


def recorder() -> Callable[[torch.Tensor], None]:
    seen: list[torch.Tensor] = []

    def record(x: torch.Tensor) -> None:
        seen.append(x)

    return record


def risky(x: torch.Tensor) -> None:
    scaled = x * 2
    raise ValueError(len(scaled))


def batches() -> Iterator[torch.Tensor]:
    past = []
    while True:
        past.append(batch())
        yield past[-1]


def remember(x: torch.Tensor, seen: list[torch.Tensor] = []) -> None:  # noqa: B006
    seen.append(x)


@functools.cache
def features(step: int) -> torch.Tensor:
    return batch()


def counted(x: torch.Tensor) -> torch.Tensor:
    ran("a checkpointed function")
    return x.exp()


def digest(net: Net) -> str:
    return hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in net.parameters())).hexdigest()


def train() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters())
    losses, errors, copies, callbacks, packed, contexts, checkpoints = [], [], [], [], [], [], []
    record, source, tracker, last = recorder(), batches(), Tracker(), None
    work: queue.Queue[Any] = queue.Queue()
    watched.inside = False
    hostile = Hostile()
    dog = object.__getattribute__(hostile, "inside")
    table, wrapped, shared = Table(), torch.ones(SIZE, SIZE).as_subclass(Wrapped), torch.ones(SIZE, SIZE)
    lazy = torch._lazy_clone(shared)  # type: ignore[attr-defined]
    dropped: list[weakref.ref[Any]] = []
    for step in range(1 << 30):
        watched.inside = False
        if any(each() is not None for each in dropped):
            print("kept", step, flush=True)
        if not torch._C._is_cow_tensor(lazy):  # type: ignore[attr-defined]
            ran("a copy on write")
        x = batch()
        net(x).square().mean().backward()
        losses.append(net(batch()).square().mean())
        CACHE[f"x{step}"] = batch()
        record(batch())
        try:
            risky(batch())
        except ValueError as error:
            errors.append(error)
        copies.append(copy.deepcopy(net.first))
        callbacks.append(functools.partial(print, batch()))
        with torch.autograd.graph.saved_tensors_hooks(lambda t: ("packed", t.clone()), unpack):
            packed.append(batch().requires_grad_().exp().mean())
        contexts.append(Scale.apply(batch().requires_grad_()).sum())
        checkpoints.append(checkpoint(counted, batch().requires_grad_(), use_reentrant=False).sum())
        Loop(batch())
        tracker.outputs["logits"].append(batch())
        Registry.store.append(batch())
        net.stats["norms"].append(batch())
        next(source)
        remember(batch())
        features(step)
        work.put({"x": batch()})
        dog.append(batch())
        table[f"k{step}"] = batch()
        following = batch()
        following.before = last  # type: ignore[attr-defined]
        last = following
        del following
        gone = batch()
        dropped = [weakref.ref(x), weakref.ref(gone)]
        del x, gone
        if step % 50 == 49:
            print("weights", digest(net), flush=True)
        with Mode():
            optimizer.step()
            optimizer.zero_grad()
            watched.inside = True
            time.sleep(0.02)
            if step == 2:
                print("ready", flush=True)
    del wrapped


if __name__ == "__main__":
    train()
