"""How an object holds what it refers to, in the words of a path: `.weight`, `[3]`, ` closure of record().seen`.

Called by walk.py for the few objects on the way to a tensor.  Invariant: nothing is asked but C accessors, and no
object is referred to by what is returned: everything goes by id, classes too, as a metaclass may hash and compare them.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable
from types import (
    AsyncGeneratorType,
    CellType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    MemberDescriptorType,
    MethodType,
    TracebackType,
)
from typing import Any

from ..inspect import frame_locals
from ..inspect.classes import MRO, SPACE, class_name, is_class, isinstance_of, own_dict

Labels = dict[int, str]  # id of an object -> the text of the edge that leads to it

Read = Callable[[Any], Labels]

_KEYS = frozenset(map(id, (str, int, bool, float)))
_KEY_CHARACTERS = 80
_FRAMES = {id(GeneratorType): "gi_frame", id(CoroutineType): "cr_frame", id(AsyncGeneratorType): "ag_frame"}


class Contents:
    """labels() of an object while it lives; forget() them all at the end of the look."""

    def __init__(self) -> None:
        self._known: dict[int, Labels] = {}
        self._special: dict[int, Labels] = {}  # of what belongs to another object: its dict, the cells of a function

    def label(self, holder: Any, held: Any) -> str:
        """The text of this edge; the class of the holder where it is not known how it holds that."""
        labels = self._known.get(id(holder))
        if labels is None:
            try:
                labels = self._special.get(id(holder)) or self._read(holder)
            except Exception:  # a container that changes meanwhile, a cell that is empty
                labels = {}
            self._known[id(holder)] = labels
        return labels.get(id(held), f".‹{class_name(holder)}›")

    def name_space(self, space: dict[str, Any]) -> None:
        """These are the globals of a module."""
        self._special[id(space)] = _attributes_in(space)

    def forget(self) -> None:
        self._known.clear()
        self._special.clear()

    def _read(self, holder: Any) -> Labels:
        kind = type(holder)
        if id(kind) in _FRAMES:
            frame = getattr(holder, _FRAMES[id(kind)])
            self._special[id(frame)] = labels = _of_suspended(holder, frame)
            return labels | {id(frame): ""}  # before Python 3.11 its frame is an object between
        if kind is FunctionType:
            return self._of_function(holder)
        if id(kind) in _READERS:
            return _READERS[id(kind)](holder)
        for base, read in _CONTAINERS:
            if issubclass(kind, base):
                return read(holder) | self._of_instance(holder)
        return self._of_class(holder) if is_class(holder) else self._of_instance(holder)

    def _of_function(self, function: FunctionType) -> Labels:
        cells, name = function.__closure__ or (), function.__code__.co_name
        variables = zip(cells, function.__code__.co_freevars, strict=True)
        self._special[id(cells)] = {id(cell): f" closure of {name}().{variable}" for cell, variable in variables}
        defaults = function.__defaults__ or ()
        first = function.__code__.co_argcount - len(defaults)
        names = function.__code__.co_varnames[first : first + len(defaults)]
        self._special[id(defaults)] = {
            id(value): f" default of {name}().{argument}" for value, argument in zip(defaults, names, strict=True)
        }
        labels: Labels = {id(cells): "", id(defaults): ""}
        for space in gc.get_referents(function):  # function.__dict__ would make one
            if type(space) is dict and space is not function.__globals__:
                self._special[id(space)] = own = _attributes_in(space)
                labels |= own | {id(space): ""}
        return labels

    def _of_class(self, holder: Any) -> Labels:
        own = {id(value): f".{name}" for name, value in SPACE(holder).items()}
        spaces = [each for each in gc.get_referents(holder) if type(each) is dict]
        self._special.update((id(each), own) for each in spaces)
        return own | {id(each): "" for each in spaces}

    def _of_instance(self, holder: Any) -> Labels:
        labels = _slots(holder)
        if isinstance_of(holder, BaseException):
            labels[id(BaseException.__dict__["__traceback__"].__get__(holder))] = ""
        space = own_dict(holder)
        if isinstance_of(space, dict):
            own = _attributes_in(space)
            self._special[id(space)] = own
            labels |= own | {id(space): ""}
        return labels


def _attributes_in(space: dict[Any, Any]) -> Labels:
    return {id(value): f".{key}" for key, value in list(dict.items(space)) if type(key) is str}


def _slots(holder: Any) -> Labels:
    labels: Labels = {}
    for kind in MRO(type(holder)):
        for name, field in SPACE(kind).items():
            if type(field) is MemberDescriptorType:
                try:
                    labels[id(field.__get__(holder))] = f".{name}"
                except AttributeError:  # not set
                    continue
    return labels


def _of_suspended(holder: Any, frame: FrameType | None) -> Labels:
    """The variables of a generator or a coroutine."""
    variables = frame_locals.read(frame) if frame is not None else {}
    return {id(value): f" (generator {holder.__name__}()).{name}" for name, value in variables.items()}


def _of_cell(cell: CellType) -> Labels:
    return {id(cell.cell_contents): ""}


def _of_traceback(trace: TracebackType) -> Labels:
    return {id(trace.tb_next): "", id(trace.tb_frame): f" traceback, {trace.tb_frame.f_code.co_name}()"}


def _of_frame(frame: FrameType) -> Labels:
    """Of a frame that has ended: a traceback holds it."""
    return {id(value): f".{name}" for name, value in frame_locals.read(frame).items()}


def _of_method(method: MethodType) -> Labels:
    return {id(method.__self__): "", id(method.__func__): ""}


def _of_dict(holder: Any) -> Labels:
    return {id(value): f"[{_key(key)}]" for key, value in list(dict.items(holder))}


def _key(key: Any) -> str:
    return repr(key)[:_KEY_CHARACTERS] if id(type(key)) in _KEYS else f"‹{class_name(key)}›"


def _numbered(base: Any) -> Read:
    return lambda holder: {id(value): f"[{place}]" for place, value in enumerate(base.__iter__(holder))}


def _unordered(base: Any) -> Read:
    return lambda holder: {id(value): "[*]" for value in base.__iter__(holder)}


_READERS: dict[int, Read] = {
    id(CellType): _of_cell,
    id(TracebackType): _of_traceback,
    id(FrameType): _of_frame,
    id(MethodType): _of_method,
}
_CONTAINERS: tuple[tuple[type, Read], ...] = (
    (dict, _of_dict),
    *((base, _numbered(base)) for base in (list, tuple, deque)),
    *((base, _unordered(base)) for base in (set, frozenset)),
)
