"""Serial numbers of modules, optimizers and loaders, and names of modules; taps call this on the training thread.

Invariant: a serial number never means two objects.  CPython recycles ids, so the dict from id to serial drops
an object the moment it dies; nothing here keeps an object alive for longer than a look at it takes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from time import monotonic, thread_time
from typing import Any
from weakref import ref

from ...streams import LOG_LOADER, LOG_MODULE, LOG_OPTIMIZER
from ..storage.log import Log
from .model_names import ModelNames, Root, innermost, kind, layers_of, root_of, wraps

_MANY = 8  # one new object for so many known ones has all of them looked at at once,
_SHARE = 0.01  # fewer as long as that takes no more of all time: a job may make one in each step,
_CREDIT_S = 2.0  # and this much is saved up at most, for what a job makes as it begins
_META = "meta"  # shapes without data: the tensors are stored elsewhere and loaded on demand


class Modules:
    """Call meet() at the first sight of a module, on any thread; name() on the agent's thread."""

    def __init__(self, log: Log, clock: Callable[[], float] = monotonic, credit_s: float = _CREDIT_S) -> None:
        self._log, self._clock = log, clock
        self._saved_s = credit_s / _SHARE
        self._free = clock() - self._saved_s  # when all looks so far are paid for
        self.serials: dict[int, int] = {}  # id(object) -> serial; read directly by the taps
        self._logged: dict[int, dict[str, Any]] = {}  # serial -> its last record in the log
        self._alive: dict[int, tuple[int, ref[Any]]] = {}  # id -> kind of its log record, the object
        # Dicts by serial and by id, the taps' too, from which dead objects are dropped.
        self.dicts_by_serial: list[dict[int, Any]] = [self._logged]
        self._new: dict[int, None] = {}
        self.dicts_by_id: list[dict[int, Any]] = [self.serials, self._alive, self._new]
        self._models = ModelNames()

    def meet(self, module: Any) -> int:
        """Give a module its serial number; called once per module, about 2 µs."""
        serial = self._number(module, LOG_MODULE)
        name = type(module).__name__
        self._log.put(LOG_MODULE, serial, {"name": name, "type": name, "parent": 0, "root": serial})
        self._new[id(module)] = None
        return serial

    def meet_optimizer(self, optimizer: Any) -> int:
        """Give an optimizer its serial number; its name is its class name."""
        serial = self._number(optimizer, LOG_OPTIMIZER)
        name = type(optimizer).__name__
        self._log.put(LOG_OPTIMIZER, serial, {"name": name, "type": name})
        self._new[id(optimizer)] = None
        return serial

    def meet_loader(self, identity: Any, fields: dict[str, Any]) -> int:
        """Give a loader its serial number; identity lives as long as the loader; fields are as in streams.py."""
        serial = self._number(identity, LOG_LOADER)
        self.log_loader(serial, fields)
        return serial

    def log_loader(self, serial: int, fields: dict[str, Any]) -> None:
        """Log what is now known about this loader."""
        self._log.put(LOG_LOADER, serial, fields)

    def device(self, serial: int) -> str | None:
        """Device of a module or an optimizer when it was last named, "" if on several devices; None if unknown."""
        logged = self._logged.get(serial, {})
        return "" if logged.get("spread") else logged.get("device")

    def _number(self, subject: Any, kind: int) -> int:
        key = id(subject)
        serial = self._log.next_id()
        self._alive[key] = kind, ref(subject, partial(self._forget, key))
        self.serials[key] = serial
        return serial

    def _forget(self, key: int, reference: Any) -> None:
        serial = self.serials.get(key, 0)
        for each in self.dicts_by_serial:
            each.pop(serial, None)
        for each in self.dicts_by_id:
            each.pop(key, None)

    # The functions of this class and the log that run on the training thread.
    training_thread_code = meet, meet_optimizer, meet_loader, device, _number, _forget, Log.next_id, Log.put

    def name(self) -> None:
        """Find names and devices of all known objects if there are new ones.  The agent's thread."""
        if self._new and (_MANY * len(self._new) >= len(self._alive) or self._clock() >= self._free):
            self._new.clear()
            begun = thread_time()
            self._name_all()
            self._free = max(self._free, self._clock() - self._saved_s) + (thread_time() - begun) / _SHARE
        elif self._models.curious:
            self._name_models()

    def _name_all(self) -> None:
        subjects = {record: dict[int, ref[Any]]() for record in (LOG_MODULE, LOG_OPTIMIZER, LOG_LOADER)}
        for key, (record, reference) in list(self._alive.items()):
            subjects[record][key] = reference
        met = subjects[LOG_MODULE]
        inside, devices = _parents(met), ModuleDevices()
        for key in met:
            self._log_module(key, met, inside, devices)
        for key, reference in subjects[LOG_OPTIMIZER].items():
            self._log_optimizer(key, reference(), devices)
        self._name_models()

    def _log_optimizer(self, key: int, optimizer: Any, devices: ModuleDevices) -> None:
        serial = self.serials.get(key)
        if serial is not None and optimizer is not None:
            name, device = type(optimizer).__name__, devices.of_optimizer(optimizer)
            self._log_if_changed(LOG_OPTIMIZER, serial, {"name": name, "type": name, "device": device})

    def _name_models(self) -> None:
        """Add the model's name to each root's record."""
        logged, roots = self._logged, dict[int, Root]()
        for key, (_, reference) in list(self._alive.items()):
            serial = self.serials.get(key, 0)
            if logged.get(serial, {}).get("root") == serial and (root := _root(reference)) is not None:
                roots[serial] = root
        self._models.name(roots)
        for serial, name in self._models.names.items():
            if serial in logged:
                within = self._models.within.get(serial, "")
                self._log_if_changed(LOG_MODULE, serial, logged[serial] | {"model": name, "within": within})

    def _log_module(
        self, key: int, met: dict[int, ref[Any]], inside: dict[int, tuple[int, str]], devices: ModuleDevices
    ) -> None:
        module, serial, parent = met[key](), self.serials.get(key), inside.get(key, (0, ""))[0]
        if serial is None or module is None:
            return
        path, chain = [], [key]
        while chain[-1] in inside:
            above, part = inside[chain[-1]]
            path.append(part)
            if above in chain:
                break
            chain.append(above)
        inner = innermost(module)
        fields: dict[str, Any] = {
            "name": ".".join(filter(None, reversed(path))) or kind(inner).__name__,
            "type": kind(inner).__name__,
            "parent": self.serials.get(parent, 0),
            "root": self.serials.get(chain[-1], serial),
            **devices.of_chain((each, met[each]()) for each in chain),
        }
        if fields["root"] == serial:
            fields["model"] = self._logged.get(serial, fields).get("model", kind(layers_of(module)[-1]).__name__)
            fields["within"] = self._logged.get(serial, fields).get("within", "")
        if inner is not module:
            fields["wraps"] = self.serials.get(id(inner), 0)
        self._log_if_changed(LOG_MODULE, serial, fields)

    def _log_if_changed(self, kind: int, serial: int, fields: dict[str, Any]) -> None:
        """Log only changed records: a job may make modules all the time, and the log is finite."""
        if self._logged.get(serial) != fields:
            self._logged[serial] = fields
            self._log.put(kind, serial, fields)

    def close(self) -> None:
        self._alive.clear()
        self.serials.clear()


def _root(reference: ref[Any]) -> Root | None:
    module = reference()
    return None if module is None else root_of(module)


def _parents(met: dict[int, ref[Any]]) -> dict[int, tuple[int, str]]:
    """Each module's parent and the path from it; a shared module has the parent that named_modules() finds first."""
    below = {key: list(_children(reference(), met, "")) for key, reference in met.items()}
    held = {child for key, children in below.items() for child, _ in children if child != key}
    parents: dict[int, tuple[int, str]] = {}
    seen = set[int]()
    for root in [*(key for key in met if key not in held), *met]:  # modules that contain each other have no root
        waiting = [] if root in seen else [(root, 0, "")]
        while waiting:
            key, above, path = waiting.pop()
            if key in seen:
                continue
            seen.add(key)
            if above:
                parents[key] = above, path
            waiting += [(child, key, path) for child, path in reversed(below[key])]
    return parents


def _children(module: Any, met: dict[int, ref[Any]], path: str) -> Iterator[tuple[int, str]]:
    """The nearest known modules below this one, with their paths; passes through modules never called (lists)."""
    for name, child in list(module._modules.items()) if module is not None else ():
        if child is None or child is module:
            continue
        part = "" if wraps(module, name) else name
        below = f"{path}.{part}" if path and part else path or part
        if id(child) in met:
            yield id(child), below
        else:
            yield from _children(child, met, below)


class ModuleDevices:
    """Devices, such as `cuda:0`, of modules and optimizers: those of their tensors, if all of them are on one device.

    Modules.name makes a new one each time.  A module that is made in its midst may get the device of one that has died;
    it is new, so that the next round corrects it.
    """

    def __init__(self) -> None:
        self._found: dict[int, frozenset[str]] = {}

    def of_chain(self, chain: Iterable[tuple[int, Any]]) -> dict[str, Any]:
        """Fields of the first module with tensors in this chain (a module, then its ancestors): `device`, and `spread`
        if they are on several devices or on the meta device."""
        found = next((found for key, module in chain if (found := self._devices_of(key, module))), frozenset[str]())
        device = _single(found)
        return {"device": device, "spread": True} if found and device is None else {"device": device}

    def of_optimizer(self, optimizer: Any) -> str | None:
        """The device of an optimizer's parameters."""
        groups = list(getattr(optimizer, "param_groups", ()))
        return _single({device for group in groups for device in _tensor_devices(group.get("params", ()))})

    def _devices_of(self, key: int, module: Any) -> frozenset[str]:
        """Devices of the module's own tensors and of those of the modules inside it."""
        if key not in self._found and module is not None:
            self._found[key] = frozenset()  # ends the recursion in a module that contains itself
            found = _tensor_devices([*module._parameters.values(), *module._buffers.values()])
            for child in list(module._modules.values()):
                found |= self._devices_of(id(child), child) if child is not None else set()
            self._found[key] = frozenset(found)
        return self._found.get(key, frozenset())


def _tensor_devices(tensors: Any) -> set[str]:
    with sys.modules["torch"]._C.DisableTorchFunction():  # or a subclass of the job's would be asked
        return {str(device) for device in {getattr(tensor, "device", None) for tensor in list(tensors)} - {None}}


def _single(found: Any) -> str | None:
    return next(iter(found)) if len(found) == 1 and _META not in found else None
