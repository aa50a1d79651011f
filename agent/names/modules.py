"""Serial numbers of modules, optimizers and loaders, and the modules' names; taps ask on the training thread.

The one invariant: a serial number never means two objects.  Ids are recycled by CPython, so the dict from
id to serial forgets an object the moment it dies; nothing here keeps one alive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from weakref import ref

from ...streams import LOG_LOADER, LOG_MODULE, LOG_OPTIMIZER
from ..storage.log import Log
from .model_names import ModelNames, kind
from .module_devices import ModuleDevices

# Children that a wrapper holds its module under: they are no part of a name.
_WRAPPED = {
    "_fsdp_wrapped_module",
    "_orig_mod",  # torch.compile
    "_checkpoint_wrapped_module",
    "_forward_module",  # Lightning
    "_original_module",  # Lightning Fabric, beside the other
}
# these hold it under the everyday name `module`
_PARALLEL = {"DistributedDataParallel", "DataParallel", "DeepSpeedEngine", "Float16Module"}
_DEEPEST = 8  # wrappers in one another


class Modules:
    """meet() on first sight, from any thread; name() on the agent's thread."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.serials: dict[int, int] = {}  # id(object) -> serial; read directly by the taps
        self._told: dict[int, dict[str, Any]] = {}  # what the log says of each serial
        self.forgotten: list[dict[int, Any]] = [self._told]  # dicts by serial, of others too, that forget what dies
        self.forgotten_ids: list[dict[int, Any]] = [self.serials]  # likewise by id
        self._alive: dict[int, ref[Any]] = {}
        self._kinds: dict[int, int] = {}  # of record in the log, by id
        self._roots = ModelNames()
        self._new = False

    def meet(self, module: Any) -> int:
        """Give a module its serial number; once a module, about 2 µs."""
        serial = self._number(module, LOG_MODULE)
        name = type(module).__name__
        self._log.put(LOG_MODULE, serial, {"name": name, "type": name, "parent": 0, "root": serial})
        self._new = True
        return serial

    def meet_optimizer(self, optimizer: Any) -> int:
        """Likewise an optimizer, which goes by its class name."""
        serial = self._number(optimizer, LOG_OPTIMIZER)
        name = type(optimizer).__name__
        self._log.put(LOG_OPTIMIZER, serial, {"name": name, "type": name})
        self._new = True
        return serial

    def meet_loader(self, identity: Any, fields: dict[str, Any]) -> int:
        """Likewise a loader, by an object that lives as long as it does; fields as streams.py has them."""
        serial = self._number(identity, LOG_LOADER)
        self.tell_loader(serial, fields)
        return serial

    def tell_loader(self, serial: int, fields: dict[str, Any]) -> None:
        """What is known of it now."""
        self._log.put(LOG_LOADER, serial, fields)

    def device(self, serial: int) -> str | None:
        """Where a module or an optimizer was when it was named last, "" if on several devices; None if not known."""
        told = self._told.get(serial, {})
        return "" if told.get("spread") else told.get("device")

    def _number(self, thing: Any, kind: int) -> int:
        key = id(thing)
        serial = self._log.next_id()
        self._alive[key] = ref(thing, partial(self._forget, key))
        self._kinds[key] = kind
        self.serials[key] = serial
        return serial

    def _forget(self, key: int, reference: Any) -> None:
        serial = self.serials.get(key, 0)
        for others in self.forgotten:
            others.pop(serial, None)
        for others in self.forgotten_ids:
            others.pop(key, None)
        self._alive.pop(key, None)
        self._kinds.pop(key, None)

    @property
    def on_the_way(self) -> tuple[Callable[..., Any], ...]:
        """What runs of this and the log on the training thread."""
        return (
            Modules.meet,
            Modules.meet_optimizer,
            Modules.meet_loader,
            Modules.device,
            Modules._number,
            Modules._forget,
            Log.next_id,
            Log.put,
        )

    def name(self) -> None:
        """Work out names and devices of all that was met, if there is anything new.  The agent's thread."""
        if self._new:
            self._new = False
            self._name()
        elif self._roots.curious:
            self._name_roots()

    def _name(self) -> None:
        kinds, alive = self._kinds, list(self._alive.items())
        things = {key: thing for key, reference in alive if (thing := reference()) is not None}
        met = {key: thing for key, thing in things.items() if kinds.get(key) == LOG_MODULE}
        inside = _places(met)
        devices = ModuleDevices()
        for key, thing in things.items():
            if key in met:
                self._tell(key, met, inside, devices)
            elif kinds.get(key) == LOG_OPTIMIZER:
                self._tell_optimizer(key, thing, devices)
        self._name_roots()

    def _name_roots(self) -> None:
        """Add to the record of each root what its model is called."""
        alive = [
            (serial, reference()) for key, reference in list(self._alive.items()) if (serial := self.serials.get(key))
        ]
        told = self._told
        roots = {serial: _layers(thing) for serial, thing in alive if told.get(serial, {}).get("root") == serial}
        self._roots.name(roots)
        for serial, name in self._roots.names.items():
            if serial in told:
                self._put(LOG_MODULE, serial, told[serial] | {"model": name})

    def _tell(self, key: int, met: dict[int, Any], inside: dict[int, tuple[int, str]], devices: ModuleDevices) -> None:
        module, serial, parent = met[key], self.serials.get(key), inside.get(key, (0, ""))[0]
        if serial is None:
            return
        path, line = [], [key]
        while line[-1] in inside:
            above, part = inside[line[-1]]
            path.append(part)
            if above in line:
                break
            line.append(above)
        inner = _innermost(module)
        fields: dict[str, Any] = {
            "name": ".".join(filter(None, reversed(path))) or kind(inner).__name__,
            "type": kind(inner).__name__,
            "parent": self.serials.get(parent, 0),
            "root": self.serials.get(line[-1], serial),
            "device": devices.of_line(upward := [(each, met[each]) for each in line]),
        }
        if fields["root"] == serial:
            fields["model"] = self._told.get(serial, fields).get("model", kind(_layers(module)[-1]).__name__)
        if devices.is_spread(upward):
            fields["spread"] = True
        if inner is not module:
            fields["wraps"] = self.serials.get(id(inner), 0)
        self._put(LOG_MODULE, serial, fields)

    def _tell_optimizer(self, key: int, optimizer: Any, devices: ModuleDevices) -> None:
        serial, name = self.serials.get(key), type(optimizer).__name__
        if serial is not None:
            device = devices.of_optimizer(optimizer)
            self._put(LOG_OPTIMIZER, serial, {"name": name, "type": name, "device": device})

    def _put(self, kind: int, serial: int, fields: dict[str, Any]) -> None:
        """Only what is news: a job may make modules all the time, and the log has an end."""
        if self._told.get(serial) != fields:
            self._told[serial] = fields
            self._log.put(kind, serial, fields)

    def close(self) -> None:
        self._alive.clear()
        self._kinds.clear()
        self.serials.clear()


def _innermost(module: Any) -> Any:
    """What torch.compile has wrapped: of the two, only the wrapper is called."""
    while type(module).__name__ == "OptimizedModule" and module._modules.get("_orig_mod") is not None:
        module = module._modules["_orig_mod"]
    return module


def _layers(module: Any) -> list[Any]:
    """A module, then what it wraps."""
    layers = [module]
    while len(layers) < _DEEPEST:
        parts = layers[-1]._modules.items()
        inner = [part for name, part in list(parts) if part is not None and _wraps(layers[-1], name)]
        if not inner:
            break
        layers.append(inner[0])
    return layers


def _wraps(module: Any, name: str) -> bool:
    """Whether the child of this name is what the module wraps."""
    return name in _WRAPPED or (name == "module" and type(module).__name__ in _PARALLEL)


def _places(met: dict[int, Any]) -> dict[int, tuple[int, str]]:
    """The module around each one and the path from there; of several places the one that named_modules() comes to."""
    below = {key: list(_children(module, met, "")) for key, module in met.items()}
    held = {child for key, children in below.items() for child, _ in children if child != key}
    places: dict[int, tuple[int, str]] = {}
    seen = set[int]()
    for root in [*(key for key in met if key not in held), *met]:  # a ring of modules has no root
        waiting = [] if root in seen else [(root, 0, "")]
        while waiting:
            key, above, path = waiting.pop()
            if key in seen:
                continue
            seen.add(key)
            if above:
                places[key] = above, path
            waiting += [(child, key, path) for child, path in reversed(below[key])]
    return places


def _children(module: Any, met: dict[int, Any], path: str) -> Iterator[tuple[int, str]]:
    """The nearest met modules below this one, with their paths; modules never called (lists) are gone through."""
    for name, child in list(module._modules.items()):
        if child is None or child is module:
            continue
        part = "" if _wraps(module, name) else name
        below = f"{path}.{part}" if path and part else path or part
        if id(child) in met:
            yield id(child), below
        else:
            yield from _children(child, met, below)
