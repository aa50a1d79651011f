"""What a name stands for, in words: its type, shape and device, and where it lives.

Used by `probe names`.  Invariant: none of the job's code runs.
"""

from __future__ import annotations

import sys
from fnmatch import fnmatchcase
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from .namespace import Namespace
from .variable_names import parts_of

_MOST = 1000  # names
_CODE = (ModuleType, FunctionType, BuiltinFunctionType, type)  # left out unless a pattern asks for them
_PLAIN = (int, float, bool, str, type(None))
_CHARACTERS, _BITS = 60, 190


def described(namespace: Namespace, pattern: str) -> list[dict[str, Any]]:
    """Every name that a snippet sees, or whose name or attribute matches the pattern; the nearest to the loop first."""
    found = list[dict[str, Any]]()
    for name, value in reversed(list(namespace.names.items())):
        if name.startswith("__"):
            continue
        is_code = issubclass(type(value), _CODE)  # isinstance would ask the value itself
        if _matches(name, pattern) and (pattern or not is_code):
            found.append({"name": name, **_described(value), "where": namespace.where(name)})
        for part, held in parts_of(value) if pattern and not is_code else ():
            if not part.startswith(".__") and _matches(part, pattern):
                found.append({"name": f"{name}{part}", **_described(held), "where": namespace.where(name)})
    return found[:_MOST]


def _matches(name: str, pattern: str) -> bool:
    each = pattern.split("|")
    return any(not one or fnmatchcase(name.lstrip("."), one) or (one.isidentifier() and one in name) for one in each)


def _described(value: Any) -> dict[str, Any]:
    kind = type(value)
    told: dict[str, Any] = {"type": kind.__qualname__, "shape": None, "device": None, "value": None}
    torch: Any = sys.modules.get("torch")
    if issubclass(kind, getattr(torch, "Tensor", ())):
        with torch._C.DisableTorchFunction():  # or a mode or subclass of the job's would be asked
            told |= {"shape": str(list(value.shape)), "device": str(value.device), "value": str(value.dtype)}
    elif kind in (list, tuple, dict, set):
        told["shape"] = f"[{len(value)}]"
    elif kind is int and value.bit_length() > _BITS:  # Python refuses to write very long ones
        told["value"] = "…"
    elif kind in _PLAIN:
        told["value"] = repr(value)[:_CHARACTERS]
    return told
