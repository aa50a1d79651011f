"""Who holds each tensor of a rank, in words, from what its agent has listed.

Called by python.tensor_trace and Connection.memory.  Invariant: pure; one row a storage, and no byte twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .. import protocol as wire

OWNED = frozenset({wire.PARAMETER, wire.GRADIENT, wire.OPTIMIZER, wire.BUFFER})
_WORDS = (
    (re.compile(r"\._modules\['([^']*)'\]"), r".\1"),
    (re.compile(r"\.(?:_parameters|_buffers)\['([^']*)'\]"), r".\1"),
    (re.compile(r"\._(forward|forward_pre|backward|backward_pre)_hooks\[\d+\]"), r" \1 hook"),
    (re.compile(r"\._post_accumulate_grad_hooks\[\d+\]"), " gradient hook"),
    (re.compile(r"\.‹_lru_cache_wrapper›"), " cache"),
    (re.compile(r"(\.\w+)\1{2,}"), r"\1…"),
)
_INDEX = re.compile(r"\[(?:-?\d+(?:\.\d+)?|'[^']*\d[^']*'|\"[^\"]*\d[^\"]*\"|‹\w+›)\]")


@dataclass(frozen=True)
class Tensor:
    """One storage.  holder: the path that keeps it alive; module: that made or owns it; storage: its address.

    Example: `sum(each.bytes for each in job.memory()[0].tensors if each.kind == "gradient")`
    """

    holder: str | None
    kind: str
    module: str | None
    saved_by: str | None
    shape: str | None
    dtype: str | None
    device: str
    bytes: int
    storage: str

    @property
    def group(self) -> str:
        """The holder that it shares with others of its kind: the model of a parameter, a list for its items."""
        holder = self.holder or "?"
        if self.kind not in OWNED or holder.startswith(("‹", "held ")):
            return _INDEX.sub("[*]", holder)
        path = holder.partition(": ")[0].removesuffix(".grad")
        inside = f".{self.module}."
        model = path[: path.rindex(inside)] if inside in path else path.rpartition(".")[0] if self.module else path
        return _INDEX.sub("[*]", model or path)


def tensors_of(listed: Mapping[str, Any]) -> Iterator[Tensor]:
    """The tensors in an agent's answer, the largest first."""
    texts: list[str] = []
    for within, text in listed["places"]:
        texts.append(text if within < 0 else texts[within] + text)
    columns = listed["storages"]
    for row in zip(*(columns[name] for name in wire.LISTED_COLUMNS), strict=True):
        place, kind, module, until, saved_by, shape, dtype, device, size, key = row
        holder = _worded(texts[place]) if place >= 0 else None
        shown = None if shape is None else str(tuple(shape)).replace(",)", ")")
        yield Tensor(holder, kind, _between(module, until), saved_by, shown, dtype or None, device, size, f"{key:#x}")


def _worded(path: str) -> str:
    for pattern, better in _WORDS:
        path = pattern.sub(better, path)
    return path.lstrip(".")


def _between(before: str | None, after: str | None) -> str | None:
    """A place between two modules: the module that both are in, after the first of them."""
    if before is None or after is None or before == after:
        return before or after
    common = []
    for one, other in zip(before.split("."), after.split("."), strict=False):
        if one != other:
            break
        common.append(one)
    return f"{'.'.join(common) or 'the model'} (after {before})"
