"""What a name stands for, in words: its type, shape and device, and where it lives.

Used by `probe names`.  Invariant: none of the job's code runs, but for what torch's own tensors say of themselves.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from .namespace import Namespace
from .variable_names import parts_of

_MOST = 1000  # names
_CODE = (ModuleType, FunctionType, BuiltinFunctionType, type)  # left out unless a pattern asks for them
_PLAIN = (int, float, bool, str, type(None))
_CHARACTERS = 60


def described(namespace: Namespace, pattern: str) -> list[dict[str, Any]]:
    """Every name that a snippet sees, or whose name or attribute matches the pattern."""
    found = list[dict[str, Any]]()
    for name, value in list(namespace.names.items()):
        if name.startswith("__"):
            continue
        if _matches(name, pattern) and (pattern or not isinstance(value, _CODE)):
            found.append({"name": name, **_described(value), "where": namespace.where(name)})
        parts = _parts(parts_of(value)) if pattern and not isinstance(value, _CODE) else ()
        for part, held in parts:
            if _matches(part, pattern):
                found.append({"name": f"{name}{part}", **_described(held), "where": namespace.where(name)})
    return found[:_MOST]


def _parts(parts: Iterator[tuple[str, Any]]) -> list[tuple[str, Any]]:
    return [(part, held) for part, held in parts if not part.startswith((".__", "._"))]


def _matches(name: str, pattern: str) -> bool:
    return not pattern or fnmatchcase(name.lstrip("."), pattern) or (pattern.isidentifier() and pattern in name)


def _described(value: Any) -> dict[str, Any]:
    kind = type(value)
    told: dict[str, Any] = {"type": kind.__qualname__, "shape": None, "device": None, "value": None}
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    if tensor is not None and isinstance(value, tensor):
        told |= {"shape": str(list(value.shape)), "device": str(value.device), "value": str(value.dtype)}
    elif kind in (list, tuple, dict, set):
        told["shape"] = f"[{len(value)}]"
    elif kind in _PLAIN:
        told["value"] = repr(value)[:_CHARACTERS]
    return told
