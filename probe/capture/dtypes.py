"""Types of tensors, as the profiler writes them: their size and torch's name.

Used by cost, traffic and processors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Shape = Sequence[int]

BYTES = {
    "float": 4, "double": 8, "c10::Half": 2, "c10::BFloat16": 2, "int": 4, "long int": 8, "long": 8, "short": 2,
    "bool": 1, "unsigned char": 1, "signed char": 1,
}  # fmt: skip
NAMES = {
    "float": "float32", "double": "float64", "c10::Half": "float16", "c10::BFloat16": "bfloat16", "int": "int32",
    "long int": "int64", "long": "int64", "short": "int16", "bool": "bool", "unsigned char": "uint8",
    "signed char": "int8",
}  # fmt: skip


def is_tensor(shape: Any) -> bool:
    """Whether an argument of these dimensions is one, of at least one dimension: no list of them, no scalar."""
    return bool(shape) and all(type(each) is int for each in shape)


def dtype_of(args: Mapping[str, Any]) -> str:
    """Of the first argument that is a tensor; "" if there is none, or its shape was not recorded."""
    pairs = zip(args.get("Input Dims", ()), args.get("Input type", ()), strict=False)
    return next((NAMES.get(kind, "") for shape, kind in pairs if is_tensor(shape)), "")
