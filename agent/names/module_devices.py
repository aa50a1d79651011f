"""The device of a module or an optimizer: that of its tensors, if all of them are on one device.

Modules.name makes a new ModuleDevices each time, on the agent's thread.  Invariant: modules and tensors are only read,
and none is kept alive.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_META = "meta"  # shapes without data: the tensors are stored elsewhere and loaded on demand


class ModuleDevices:
    """Device names such as `cuda:0`, by id(module); valid while all modules of the round are alive."""

    def __init__(self) -> None:
        self._found: dict[int, frozenset[str]] = {}

    def of_chain(self, chain: Sequence[tuple[int, Any]]) -> str | None:
        """Device of the first module in this chain (a module, then its ancestors) that has tensors."""
        for key, module in chain:
            found = self._devices_of(key, module)
            if found:
                return _single(found)
        return None

    def is_on_several(self, chain: Sequence[tuple[int, Any]]) -> bool:
        """Whether the module that of_chain() picks has tensors on several devices or on the meta device."""
        found = next((found for key, module in chain if (found := self._devices_of(key, module))), None)
        return bool(found) and _single(found) is None

    def of_optimizer(self, optimizer: Any) -> str | None:
        """The device of an optimizer's parameters."""
        groups = list(getattr(optimizer, "param_groups", ()))
        return _single({device for group in groups for device in _tensor_devices(group.get("params", ()))})

    def _devices_of(self, key: int, module: Any) -> frozenset[str]:
        """Devices of the module's own tensors and of those of the modules inside it."""
        if key not in self._found:
            self._found[key] = frozenset()  # ends the recursion in a module that contains itself
            found = _tensor_devices([*module._parameters.values(), *module._buffers.values()])
            for child in list(module._modules.values()):
                found |= self._devices_of(id(child), child) if child is not None else set()
            self._found[key] = frozenset(found)
        return self._found[key]


def _tensor_devices(tensors: Any) -> set[str]:
    return {str(device) for device in {getattr(tensor, "device", None) for tensor in list(tensors)} - {None}}


def _single(found: Any) -> str | None:
    return next(iter(found)) if len(found) == 1 and _META not in found else None
