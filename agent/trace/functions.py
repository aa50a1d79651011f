"""Finds a function of the job by its name, and says which cannot be traced.

Called by the traces, on the agent's thread.  Invariant: nothing of the job's runs: only dictionaries of modules and
classes are read, and what descriptors hold.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import _lru_cache_wrapper, cached_property, partial, partialmethod
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from ..inspect.classes import MRO, SPACE, is_class, isinstance_of
from ..names.namespace import USERS, file_owner
from .kernel import ASYNC_GENERATOR

_OURS = __name__.partition(".")[0]
_MOST_NAMES, _MOST_TOLD = 2000, 10
_MOST_WRAPPED = 16
_MEMBERS = (FunctionType, MethodType, partial, partialmethod, property, staticmethod, classmethod, cached_property)
_MEMBER_IDS = frozenset(map(id, _MEMBERS))  # a metaclass of the job's may compare classes by code of its own
# Files of torch's that run at each operation or whose code other taps swap.
_OF_TORCH = (
    "_", "autograd/", "compiler/", "cuda/graphs.py", "fx/", "jit/", "nn/modules/module.py", "optim/optimizer.py",
    "overrides.py", "utils/data/dataloader.py", "utils/hooks.py", "utils/_",
)  # fmt: skip
_QUALNAME: Any = type.__dict__["__qualname__"].__get__


class NoFunction(Exception):
    """The name means no function that can be traced; the text says why."""


def find(name: str) -> tuple[FunctionType, bool] | None:
    """The function of this name, and whether its first argument is the object or the class that it belongs to; None if
    there is nothing of this name.

    name: `module:qualname`, `module.qualname`, `file.py:function`, or a qualname in any module.  Raises NoFunction.
    """
    if "<locals>" in name:
        raise NoFunction(f"{name} is made anew at each call: name the function around it, or what holds it.")
    for of_users in (True, False):
        if (function := _only(name, of_users)) is not None:
            return function
    return None


def _only(name: str, of_users: bool) -> tuple[FunctionType, bool] | None:
    found: dict[int, tuple[str, FunctionType, bool]] = {}
    why_not: NoFunction | None = None
    for names, path in _places(name):
        if (file_owner(_file(names)) == USERS) is of_users and (value := _walk(names, path)) is not None:
            try:
                function, bound = _function(value, len(path) > 1)
                found.setdefault(id(function), (named(function), function, bound))
            except NoFunction as error:
                why_not = NoFunction(f"{name} {error}.")
    if len(found) > 1:
        texts = sorted(each for each, _, _ in found.values())
        more = f" and {len(texts) - _MOST_TOLD} more" if len(texts) > _MOST_TOLD else ""
        raise NoFunction(f"{name} means several functions: {', '.join(texts[:_MOST_TOLD])}{more}.")
    if why_not is not None and not found:
        raise why_not
    return next(((function, bound) for _, function, bound in found.values()), None)


def named(function: FunctionType) -> str:
    """`module:qualname`."""
    return f"{function.__module__}:{function.__qualname__}"


def names_of_users() -> list[str]:
    """The functions of the job's own modules, for suggestions; some thousand at most."""
    found: dict[str, None] = {}
    for name, names in _modules():
        if file_owner(_file(names)) == USERS:
            for path, _ in _functions_in(name, names):
                found[f"{name}:{path}"] = None
                if len(found) >= _MOST_NAMES:
                    return list(found)
    return list(found)


def _functions_in(module: str, names: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Those that the module defines, and the methods of its classes."""
    for name, value in list(names.items()):
        if type(value) is FunctionType and value.__module__ == module:
            yield name, value
        elif is_class(value) and SPACE(value).get("__module__") == module:
            for inner, member in list(SPACE(value).items()):
                if id(type(member)) in _MEMBER_IDS and not inner.startswith("__"):
                    yield f"{name}.{inner}", member


def _modules() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every module but the agent's, with its dictionary."""
    for name, module in list(sys.modules.items()):
        if isinstance_of(module, ModuleType) and name.partition(".")[0] != _OURS:
            yield name, object.__getattribute__(module, "__dict__")


def _places(name: str) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """Modules in which the name may be, with the path in each: in one that it names, else in all of them."""
    where, colon, qualname = name.rpartition(":")
    if colon:
        path = qualname.split(".")
        is_file = where.endswith(".py")
        for module, names in _modules():
            if (_is_in_file(names, where) if is_file else module == where) and path[0] in names:
                yield names, path
        return
    parts = name.split(".")
    known = dict(_modules())
    for cut in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:cut])
        if module in known and parts[cut] in known[module]:
            yield known[module], parts[cut:]
            return
    for names in known.values():
        if parts[0] in names:
            yield names, parts


def _is_in_file(names: dict[str, Any], file: str) -> bool:
    path = _file(names)
    return path == file or path.endswith(os.sep + file.removeprefix("./"))


def _file(names: dict[str, Any]) -> str:
    file = dict.get(names, "__file__")
    return file if type(file) is str else ""


def _walk(names: dict[str, Any], path: list[str]) -> Any:
    """What the path leads to, through classes, or from an object to what its class has; None if that is nothing."""
    value = dict.get(names, path[0])
    for part in path[1:]:
        bases = MRO(value if is_class(value) else type(value))
        value = next((SPACE(base)[part] for base in bases if part in SPACE(base)), None)
    return value


def _function(value: Any, in_class: bool) -> tuple[FunctionType, bool]:
    """The function behind methods, properties, partials and caches.  Raises NoFunction for what has none, or for one
    that has to be left alone."""
    bound = in_class
    for _ in range(_MOST_WRAPPED):
        kind = type(value)
        if kind is FunctionType:
            _require_traceable(value)
            return value, bound
        if kind is staticmethod:
            value, bound = value.__func__, False
        elif kind is classmethod or kind is MethodType:
            value, bound = value.__func__, True
        elif kind is property:
            value = value.fget
        elif kind is partial or kind is partialmethod or kind is cached_property:
            value = value.func
        elif kind is _lru_cache_wrapper:
            value = value.__dict__.get("__wrapped__")
        else:
            break
    raise NoFunction(_what_else(value))


def _what_else(value: Any) -> str:
    kind = type(value)
    if is_class(value):
        return "is a class: name one of its methods, such as __init__ or __call__"
    if any("__call__" in SPACE(base) and type(SPACE(base)["__call__"]) is FunctionType for base in MRO(kind)):
        return f"is an object: name the method of its class, {SPACE(kind).get('__module__')}:{_QUALNAME(kind)}.__call__"
    if "__call__" in {name for base in MRO(kind) for name in SPACE(base)}:
        return "has no Python code: it is written in C"
    return "is no function"


def _require_traceable(function: FunctionType) -> None:
    code: CodeType = function.__code__
    if str(dict.get(function.__globals__, "__name__")).partition(".")[0] == _OURS:
        raise NoFunction("is a function of probe's own")
    if code.co_filename.startswith("<frozen importlib"):
        raise NoFunction("belongs to the import system, which has to be left alone")
    torch = str(getattr(sys.modules.get("torch"), "__file__", ""))
    inside = code.co_filename.removeprefix(os.path.dirname(torch) + os.sep)
    is_compiled = "_torchdynamo_orig_callable" in function.__dict__  # what torch.compile has made of a function
    if torch and not is_compiled and inside != code.co_filename and inside.startswith(_OF_TORCH):
        raise NoFunction("belongs to the parts of torch that run at every operation, or that probe records anyway")
    if code.co_flags & ASYNC_GENERATOR:
        raise NoFunction("is an asynchronous generator, which cannot be traced: name the function that uses it")
