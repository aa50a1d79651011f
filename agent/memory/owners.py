"""What modules and optimizers own: parameters, gradients, buffers and state; and the names of modules in their models.

Made by look.py.  Invariant: a parameter that several modules share belongs to the first of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ... import protocol as wire
from ..inspect.classes import class_name, family, loaded, table
from ..names.model_names import wraps
from .storages import Storage, Storages
from .walk import Root, Walk

_DEEPEST = 64
_DDP = "DistributedDataParallel"


def owning_classes() -> dict[int, type]:
    """By id, the classes of modules and optimizers."""
    torch = loaded("torch")
    return family(torch.nn.Module) | family(torch.optim.Optimizer)


class Owners:
    """claim() what the modules and optimizers that were met own; then gradient() of any other tensor."""

    def __init__(self, storages: Storages, walk: Walk) -> None:
        torch = loaded("torch")
        self._storages, self._walk = storages, walk
        self._modules, self._optimizers = family(torch.nn.Module), family(torch.optim.Optimizer)
        self._above: dict[int, tuple[Any, str]] = {}  # id of a module -> the one that has it, and its name there
        self._owner: dict[int, Any] = {}  # address of a parameter -> its module
        self._sizes: dict[int, int] = {}  # likewise -> its bytes, if it is trained
        self.gradients: list[tuple[Any, Any, str]] = []  # with the base and suffix of their places

    def is_module(self, thing: Any) -> bool:
        return id(type(thing)) in self._modules

    def is_optimizer(self, kind: Any) -> bool:
        return id(kind) in self._optimizers

    def claim(self, things: Iterable[Any]) -> None:
        """Of all modules and optimizers among these objects."""
        things = list(things)
        modules = [each for each in things if id(type(each)) in self._modules]
        seen = {id(each) for each in modules}
        for each in modules:  # it grows: a walk that was cut has not come to all
            self._place_children(each)
            for child in table(each, "_modules").values():
                if self.is_module(child) and id(child) not in seen:
                    seen.add(id(child))
                    modules.append(child)
        for kind, slot in ((wire.PARAMETER, "_parameters"), (wire.BUFFER, "_buffers")):
            for module in modules:
                for name, tensor in table(module, slot).items():
                    if type(name) is str and self._storages.is_tensor(tensor):
                        self._own(module, kind, name, tensor)
        for each in things:
            if id(type(each)) in self._optimizers:
                self._state_of(each)

    def _place_children(self, module: Any) -> None:
        for name, child in table(module, "_modules").items():
            if child is not module and self.is_module(child) and id(child) not in self._above and type(name) is str:
                self._above[id(child)] = module, name
                if not self._is_above(child, module):
                    self._walk.named[id(child)] = Root(module, f".{name}")

    def _is_above(self, module: Any, below: Any) -> bool:
        """Whether modules contain each other, so that neither has a name in the other."""
        for _ in range(_DEEPEST):
            if below is module:
                return True
            if id(below) not in self._above:
                return False
            below = self._above[id(below)][0]
        return True

    def _own(self, module: Any, kind: str, name: str, tensor: Any) -> None:
        key = self._storages.key(tensor)
        row = self._storages.claim(tensor, kind, module, f".{name}")
        if row is not None:
            row.module = self.name_of(module)
            self._owner[key] = module
            if kind == wire.PARAMETER and self._storages.requires_grad(tensor):
                self._sizes[key] = row.bytes
        self._walk.named.setdefault(id(tensor), Root(module, f".{name}"))
        self.gradient(tensor, module, f".{name}")

    def gradient(self, tensor: Any, base: Any, suffix: str = "") -> None:
        """Claim the gradient of a leaf; asked of others, torch would warn."""
        storages = self._storages
        if storages.reads_autograd and storages.is_leaf(tensor):
            gradient = storages.gradient(tensor)
            if gradient is not None:
                row = storages.claim(gradient, wire.GRADIENT, base, f"{suffix}.grad")
                if row is not None:
                    row.module = self.name_of(self._owner.get(storages.key(tensor)))
                self.gradients.append((gradient, base, f"{suffix}.grad"))

    def _state_of(self, optimizer: Any) -> None:
        for tensor, values in table(optimizer, "state").items():
            of = tensor if self._storages.is_tensor(tensor) else optimizer
            for name, value in list(dict.items(values)) if type(values) is dict else ():
                if self._storages.is_tensor(value) and type(name) is str:
                    row = self._storages.claim(value, wire.OPTIMIZER, of, f": {name}")
                    if row is not None:
                        row.module = self.name_of(self._owner.get(self._storages.key(of)))

    def claim_buckets(self, rows: Iterable[Storage]) -> None:
        """The buckets of DDP, which C++ alone holds: flat tensors that no reference leads to, and that together have
        the size of its parameters."""
        for ddp in (each for each in self._walk.met if class_name(each) == _DDP and self.is_module(each)):
            inner = table(ddp, "_modules").get("module")
            owned = {key: size for key, size in self._sizes.items() if self._is_in(self._owner[key], inner)}
            flat = [row for row in rows if row.kind == wire.OTHER and row.shape is not None and len(row.shape) == 1]
            if owned and sum(row.bytes for row in flat) == sum(owned.values()):
                for row in flat:
                    row.kind, row.base, row.suffix = wire.GRADIENT, ddp, ": bucket"

    def _is_in(self, module: Any, outer: Any) -> bool:
        for _ in range(_DEEPEST):
            if module is outer or id(module) not in self._above:
                return module is outer
            module = self._above[id(module)][0]
        return False

    def owner_of(self, tensor: Any) -> str | None:
        """The name of the module whose parameter that is."""
        return self.name_of(self._owner.get(self._storages.key(tensor)))

    def name_of(self, module: Any) -> str | None:
        """The module's name within its model, as in python.torch_trace; of the model itself its class."""
        if module is None:
            return None
        names: list[str] = []
        for _ in range(_DEEPEST):
            above = self._above.get(id(module))
            if above is None:
                break
            if not wraps(*above):
                names.append(above[1])
            module = above[0]
        return ".".join(reversed(names)) or class_name(module)

    def forget(self) -> None:
        self._above.clear()
        self._owner.clear()
        self._sizes.clear()
        self.gradients.clear()
