"""Names that are deposited with an agent, in parts that it takes.

Used by the profiler and by captures.  Invariant: the header of no request is larger than an agent accepts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TypeVar

from ..protocol import MAX_CONTROL_BYTES

_BYTES_AT_ONCE = MAX_CONTROL_BYTES // 2
Name = TypeVar("Name", str, tuple[str, str])


def in_parts(names: Iterable[Name]) -> Iterator[list[Name]]:
    """As many at once as fit into the header of a request; names of two parts are joined for that."""
    part, size = list[Name](), 0
    for name in names:
        cost = len(json.dumps(deposited(name))) + 2
        if part and size + cost > _BYTES_AT_ONCE:
            yield part
            part, size = [], 0
        part.append(name)
        size += cost
    if part:
        yield part


def deposited(name: str | tuple[str, str]) -> str:
    """As the agent gets it, which keeps the first thousand characters."""
    return (name if isinstance(name, str) else "\0".join(name))[:1000]
