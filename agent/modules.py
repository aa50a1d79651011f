"""Serial numbers of modules and optimizers, and their names; taps ask on the training thread.

The one invariant: a serial number never means two objects.  Ids are recycled by CPython, so the dict from
id to serial forgets an object the moment it dies; nothing here keeps one alive.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from weakref import KeyedRef

from ..streams import LOG_MODULE, LOG_OPTIMIZER
from .log import Log

# Children that a wrapper holds its module under: they are no part of a name.
_WRAPPED = {"_fsdp_wrapped_module", "_orig_mod", "_checkpoint_wrapped_module", "_forward_module"}
_PARALLEL = {"DistributedDataParallel", "DataParallel"}  # these hold it under the everyday name `module`


class Modules:
    """meet() on first sight, from any thread; name() on the agent's thread."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.serials: dict[int, int] = {}  # id(object) -> serial; read directly by the taps
        self.forgotten: list[dict[int, Any]] = []  # dicts by serial, of others, that forget what dies too
        self._alive: dict[int, KeyedRef[int, Any]] = {}
        self._new = False

    def meet(self, module: Any) -> int:
        """Give a module its serial number; once a module, about 2 µs."""
        serial = self._number(module)
        name = type(module).__name__
        self._log.put(LOG_MODULE, serial, {"name": name, "type": name, "parent": 0, "root": serial})
        self._new = True
        return serial

    def meet_optimizer(self, optimizer: Any) -> int:
        """Likewise an optimizer, which goes by its class name."""
        serial = self._number(optimizer)
        name = type(optimizer).__name__
        self._log.put(LOG_OPTIMIZER, serial, {"name": name, "type": name})
        return serial

    def _number(self, thing: Any) -> int:
        key = id(thing)
        serial = self._log.next_id()
        self._alive[key] = KeyedRef(thing, self._forget, key)
        self.serials[key] = serial
        return serial

    def _forget(self, reference: KeyedRef[int, Any]) -> None:
        serial = self.serials.pop(reference.key, 0)
        for others in self.forgotten:
            others.pop(serial, None)
        self._alive.pop(reference.key, None)

    def name(self) -> None:
        """Work out the qualified names of all modules met, if there are new ones.  The agent's thread."""
        if not self._new:
            return
        self._new = False
        met = {key: module for key, ref in list(self._alive.items()) if hasattr(module := ref(), "_modules")}
        inside: dict[int, tuple[int, str]] = {}
        for key, module in met.items():
            for child, path in _children(module, met, ""):
                inside.setdefault(child, (key, path))
        for key, module in met.items():
            self._tell(key, module, inside)

    def _tell(self, key: int, module: Any, inside: dict[int, tuple[int, str]]) -> None:
        serial, parent = self.serials.get(key), inside.get(key, (0, ""))[0]
        if serial is None:
            return
        path, root, seen = [], key, {key}
        while root in inside:
            above, part = inside[root]
            path.append(part)
            if above in seen:
                break
            seen.add(above)
            root = above
        wrapped = _compiled_in(module)
        kind = type(module if wrapped is None else wrapped).__name__
        fields: dict[str, Any] = {"name": ".".join(filter(None, reversed(path))) or kind, "type": kind}
        fields |= {"parent": self.serials.get(parent, 0), "root": self.serials.get(root, serial)}
        if wrapped is not None:
            fields["wraps"] = self.serials.get(id(wrapped), 0)
        self._log.put(LOG_MODULE, serial, fields)

    def close(self) -> None:
        self._alive.clear()
        self.serials.clear()


def _compiled_in(module: Any) -> Any:
    """The module that torch.compile wrapped in this one, None if this is no such wrapper."""
    return module._modules.get("_orig_mod") if type(module).__name__ == "OptimizedModule" else None


def _children(module: Any, met: dict[int, Any], path: str) -> Iterator[tuple[int, str]]:
    """The nearest met modules below this one, with their paths; modules never called (lists) are gone through."""
    parallel = type(module).__name__ in _PARALLEL
    for name, child in list(module._modules.items()):
        if child is None or child is module:
            continue
        part = "" if name in _WRAPPED or (parallel and name == "module") else name
        below = f"{path}.{part}" if path and part else path or part
        if id(child) in met:
            yield id(child), below
        else:
            yield from _children(child, met, below)
