"""What is read of a call's arguments: how large the first one is, and since when the call has been waiting.

Called by the hooks of a traced function, on the job's threads.  Invariant: no code of the job's runs: properties,
__len__ and __getattr__ of its classes are left alone, as are __eq__ and __hash__ of their metaclasses, and what cannot
be read without them is not known.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from time import perf_counter, time
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any

from ..inspect.classes import MRO, SPACE
from ..noop import noop
from ..torch_state import torch_is_imported

UNKNOWN = -1
_SIZED = frozenset({list, tuple, dict, str, bytes, set})
_MOST_WAITED_S = 3600.0  # a moment further back is no time stamp of this clock
_CLOCKS_DIFFER_S = 0.001  # how far a time stamp of just now may lie ahead
_MOST_TYPES = 64
_Way = Callable[[Any], Any]


def size_reader() -> Callable[[Any], int]:
    """A function for the size of an object: elements of a container or a tensor, characters of a text."""
    torch, tensor, parameter = sys.modules.get("torch"), None, None
    if torch is not None and torch_is_imported():
        tensor, parameter = torch.Tensor, torch.nn.Parameter
        base: Any = MRO(torch.Tensor)[1]  # torch 2.1 has another name for it
        count, modes = base.numel, torch._C._len_torch_function_stack
        tracing = torch._C._get_tracing_state

    def size(value: Any) -> int:
        kind = type(value)
        if type(kind) is type:  # any other would be asked for the hash of its class
            return len(value) if kind in _SIZED else UNKNOWN
        # a mode is the job's code; a trace would record it
        if (kind is tensor or kind is parameter) and not modes() and tracing() is None:
            found = count(value)
            return found if type(found) is int else UNKNOWN
        return UNKNOWN

    return size


def waited_ns(value: Any) -> int:
    """How long ago this time stamp was, by the clock that it is of: time(), or monotonic() and perf_counter(), which
    are one clock on Linux."""
    if type(value) is float:
        for clock in (perf_counter, time):
            passed = clock() - value
            if -_CLOCKS_DIFFER_S <= passed <= _MOST_WAITED_S:
                return max(0, int(passed * 1e9))
    return UNKNOWN


def held_reader(name: str) -> Callable[[Any], Any]:
    """A function for what the first of some objects that has it holds under this name, as an attribute or a key; None
    if none has.  Without a name, it gives what it gets."""
    if not name:
        return lambda value: value
    ways: dict[int, _Way] = {}  # by id: a class may be hashed and compared by code of the job's
    kinds: list[type] = []  # these classes, or another one could get the id

    def held(values: Iterable[Any]) -> Any:
        for value in values:
            kind = type(value)
            way = ways.get(id(kind))
            if way is None:
                if len(ways) >= _MOST_TYPES:
                    ways.clear()
                    kinds.clear()
                kinds.append(kind)
                way = ways[id(kind)] = _way(kind, name)
            found = way(value)
            if found is not None:
                return found
        return None

    return held


def _way(kind: type, name: str) -> _Way:
    """How an object of this type is asked."""
    if kind is dict:
        return lambda value: value.get(name)
    slot, dictionary = None, None
    for base in MRO(kind):
        members = SPACE(base)
        slot = members.get(name) if slot is None else slot  # whether an object is true, its class decides
        dictionary = members.get("__dict__") if dictionary is None else dictionary
    if type(slot) is MemberDescriptorType:
        return _or_none(slot.__get__)
    if type(dictionary) is GetSetDescriptorType:  # a property is the class's own code
        get = dictionary.__get__
        return lambda value: dict.get(get(value), name)
    return noop


def _or_none(get: _Way) -> _Way:
    def held(value: Any) -> Any:
        try:
            return get(value)
        except AttributeError:  # it is not set
            return None

    return held
