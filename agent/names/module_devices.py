"""On which device a module or an optimizer is: that of its tensors, where all of them are on one.

Made by Modules.name on the agent's thread, anew each time.  The one invariant: modules and tensors are looked at,
never touched, and none is kept alive.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_NOWHERE = "meta"  # shapes without data: the tensors are kept elsewhere and come when they are needed


class ModuleDevices:
    """Names as `cuda:0`, by id(module), for as long as all modules of the round are alive."""

    def __init__(self) -> None:
        self._found: dict[int, frozenset[str]] = {}

    def of_line(self, line: Sequence[tuple[int, Any]]) -> str | None:
        """Of a module, with those around it, innermost first: one that has no tensors is where those around it are."""
        for key, module in line:
            found = self._of(key, module)
            if found:
                return _only(found)
        return None

    def is_spread(self, line: Sequence[tuple[int, Any]]) -> bool:
        """Whether the module that of_line() looks at has tensors on several devices, or elsewhere than on one."""
        found = next((found for key, module in line if (found := self._of(key, module))), None)
        return bool(found) and _only(found) is None

    def of_optimizer(self, optimizer: Any) -> str | None:
        """Of an optimizer's parameters."""
        groups = list(getattr(optimizer, "param_groups", ()))
        return _only({device for group in groups for device in _of_tensors(group.get("params", ()))})

    def _of(self, key: int, module: Any) -> frozenset[str]:
        """Of its own tensors and of those of the modules inside it."""
        if key not in self._found:
            self._found[key] = frozenset()  # for a module that holds itself
            found = _of_tensors([*module._parameters.values(), *module._buffers.values()])
            for child in list(module._modules.values()):
                found |= self._of(id(child), child) if child is not None else set()
            self._found[key] = frozenset(found)
        return self._found[key]


def _of_tensors(tensors: Any) -> set[str]:
    return {str(device) for device in {getattr(tensor, "device", None) for tensor in list(tensors)} - {None}}


def _only(found: Any) -> str | None:
    return next(iter(found)) if len(found) == 1 and _NOWHERE not in found else None
