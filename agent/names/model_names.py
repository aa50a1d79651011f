"""The names of the process's models: the variable that holds the outermost module (root) of each, else its class.

modules.py calls this on the agent's thread.  Invariant: no two roots that are alive at once share a name, and no root
has the name of a variable that did not hold it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from time import monotonic
from types import FrameType
from typing import Any, NamedTuple
from weakref import ref

from ..boundary.back_edge_trace import in_a_trace
from ..boundary.driving_loop import is_mark
from ..inspect import frame_locals
from ..inspect.classes import class_name
from ..inspect.exclusive import exclusively
from ..inspect.frames import frames_of_others, is_ours, outward
from .namespace import PACKAGES, USERS, code_owner
from .variable_names import MAX_FRAMES, OWN_NAMES, values_in, variables

LOOKS = 3  # per root: a variable that holds another root next time was a loop variable or a parameter
LOOK_AGAIN_S = 1.0
_MAX_LOOKED_FOR = 64  # roots searched for at once
_MAX_THREADS = 16  # threads whose variables are read
LONGEST_S = 0.003  # limit of one search, during which no other thread runs
PATIENCE_S = 0.05
_MODULE = "torch.nn.modules.module"
_MODULE_PY = "torch/nn/modules/module.py"  # calls run in this file, whose names for a module are not the user's
_ENTRIES = ("RESUME", "YIELD_VALUE", "GEN_START")  # where a frame stands while a trace function is told of its entry
# Attributes under which wrappers hold their module; they are left out of names.
_WRAPPED = {
    "_fsdp_wrapped_module",
    "_orig_mod",  # torch.compile
    "_checkpoint_wrapped_module",
    "_forward_module",  # Lightning
    "_original_module",  # Lightning Fabric, beside _forward_module
}
# Wrappers that hold it under the ordinary name `module`.
_PARALLEL = {"DistributedDataParallel", "DataParallel", "DeepSpeedEngine", "Float16Module"}
_MAX_WRAPPERS = 8  # nested wrappers


class Root(NamedTuple):
    """The outermost module of a model: the class of the innermost module that it wraps, and all from it to that one;
    none is kept alive."""

    class_name: str
    layers: Sequence[ref[Any]]


Found = dict[int, dict[str, tuple[str, str]]]  # serial -> variable -> the model's name, and the root's name in it


class ModelNames:
    """Call name() in each round, also without new modules while `curious`: a better name may still be found."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}  # serial -> name as shown
        self._base_names: dict[int, str] = {}  # serial -> name without a number
        self._variables: dict[int, str] = {}  # serial -> variable that holds it
        self.within: dict[int, str] = {}  # serial -> its name in the module that the model is, if that is another one
        self._found: dict[int, tuple[str, str]] = {}  # serial -> what the variable makes of these two
        self._looks: dict[int, int] = {}
        self._looked_s = 0.0

    @property
    def curious(self) -> bool:
        return any(looks < LOOKS for looks in self._looks.values()) and monotonic() >= self._looked_s + LOOK_AGAIN_S

    def name(self, roots: Mapping[int, Root]) -> None:
        """Name all living roots, by serial."""
        for known in (self.names, self._base_names, self._variables, self._looks, self.within, self._found):
            for serial in known.keys() - roots.keys():
                del known[serial]
        self._look([serial for serial in roots if self._looks.setdefault(serial, 0) < LOOKS][:_MAX_LOOKED_FOR], roots)
        numbers = dict[str, Iterator[int]]()
        taken = {(name, self.within.get(serial, "")) for serial, name in self.names.items()}
        for serial in sorted(roots):
            variable = self._variables.get(serial) or roots[serial].class_name
            base, within = self._found.get(serial, (variable, ""))
            if self._base_names.get(serial) != variable:
                taken.discard((self.names.pop(serial, ""), self.within.pop(serial, "")))
                shown = base
                while (shown, within) in taken:
                    shown = f"{base}#{next(numbers.setdefault(variable, count(2)))}"
                taken.add((shown, within))
                self._base_names[serial], self.names[serial], self.within[serial] = variable, shown, within

    def _look(self, serials: Sequence[int], roots: Mapping[int, Root]) -> None:
        if not serials:
            return
        self._looked_s = monotonic()
        wanted = [(layer, serial) for serial in serials for layer in roots[serial].layers]
        found: Found = {serial: {} for serial in serials}
        held = {serial: self._variables.get(serial) for serial in serials}
        exclusively(partial(_search, wanted, held, found), in_a_trace, PATIENCE_S)
        for serial in serials:
            self._looks[serial] += 1
            names = found[serial]
            if names and self._variables.get(serial) not in names:
                self._variables[serial], self._found[serial] = next(iter(names.items()))


# A class made for one module, from one of these and the class that the module had.
_MIXED_IN = {"FSDPModule", "DDP", "ReplicateModule"}


def kind(module: Any) -> type:
    """The user's class, also if FSDP2 has replaced it by one of its own."""
    own = type(module)
    mixed = len(own.__bases__) == 2 and own.__bases__[0].__name__ in _MIXED_IN
    return own.__bases__[1] if mixed else own


def innermost(module: Any) -> Any:
    """The module that torch.compile has wrapped; only the wrapper is called."""
    while type(module).__name__ == "OptimizedModule" and module._modules.get("_orig_mod") is not None:
        module = module._modules["_orig_mod"]
    return module


def root_of(module: Any) -> Root:
    layers = layers_of(module)
    return Root(kind(layers[-1]).__name__, [ref(each) for each in layers])


def layers_of(module: Any) -> list[Any]:
    """A module, then the modules that it wraps, innermost last."""
    layers = [module]
    while len(layers) < _MAX_WRAPPERS:
        parts = layers[-1]._modules.items()
        inner = [part for name, part in list(parts) if part is not None and wraps(layers[-1], name)]
        if not inner:
            break
        layers.append(inner[0])
    return layers


def wraps(module: Any, name: str) -> bool:
    """Whether the child of this name is the one that the module wraps."""
    return name in _WRAPPED or (name == "module" and class_name(module) in _PARALLEL)


def _is_module(value: Any) -> bool:
    return any(each.__name__ == "Module" and each.__module__ == _MODULE for each in type(value).__mro__)


# ---- while no other thread runs


def _search(layers: Sequence[tuple[ref[Any], int]], held: dict[int, str | None], found: Found) -> None:
    """Find names until each root has its previous name, or any if it had none.  Keeps none of the job's objects."""
    end = monotonic() + LONGEST_S
    wanted = {id(layer): serial for reference, serial in layers for layer in [reference()] if layer is not None}
    for space in _namespaces():
        for (name, part), value in values_in(space):
            if id(value) in wanted:
                found[wanted[id(value)]].setdefault(name + part, _parts_of_name(name, part, space[name]))
        if monotonic() > end or all(
            found[serial] and (name is None or name in found[serial]) for serial, name in held.items()
        ):
            return


def _parts_of_name(name: str, part: str, holder: Any) -> tuple[str, str]:
    """The model's name and the root's in it, if a module holds the root; else all of it is the model's name."""
    if not part.startswith(".") or not _is_module(holder):
        return name + part, ""
    return kind(holder).__name__ if name in OWN_NAMES else name, part[1:]


def _namespaces() -> Iterator[dict[str, Any]]:
    """Namespaces of the user's functions first; the main thread's first, and outer frames, whose variables live longer,
    before inner ones."""
    threading: Any = sys.modules.get("threading")
    main = threading.main_thread().ident if threading is not None else None
    tops = sorted(frames_of_others().items(), key=lambda item: item[0] != main)[:_MAX_THREADS]
    frames = [(code_owner(frame), frame) for _, top in tops for frame in _from_outside(top)]
    for kind in (USERS, PACKAGES):
        ordered = [frame for owner, frame in frames if owner == kind]
        for frame in ordered:
            if not frame_locals.has_slots(frame) or _is_quiet(frame):
                yield variables(frame)
        yield from {id(frame.f_globals): frame.f_globals for frame in ordered}.values()


def _from_outside(top: FrameType) -> Iterator[FrameType]:
    """Frames from the outermost to the first call of a module."""
    for frame in reversed(list(outward(top, MAX_FRAMES))):
        if frame.f_code.co_filename.endswith(_MODULE_PY) or is_ours(frame):
            return
        yield frame


def _is_quiet(frame: FrameType) -> bool:
    """No trace function runs for it, which would write back the copy of its variables that is emptied after reading."""
    if not frame_locals.COPIES:
        return True
    if frame.f_trace is not None and not is_mark(frame.f_trace):
        return False
    import opcode

    return frame.f_lasti >= 0 and opcode.opname[frame.f_code.co_code[frame.f_lasti]] not in _ENTRIES
