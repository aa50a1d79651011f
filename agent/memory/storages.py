"""The storages that were found, each once, with what is known of it.

Filled by the files of this room that find tensors.  Invariant: a tensor's data is not touched, so one that shares its
memory with another until it is written to stays that way; both are one storage here.
"""

from __future__ import annotations

from typing import Any

from ..inspect.classes import MRO, SPACE, family, loaded
from .places import NOWHERE

_NO_MEMORY = ("meta", "fake")


class Storage:
    """base: the object whose place, with `suffix`, is that of the storage, until its number is known; module: that
    made or owns it, or between which and `until` it was made; saved_by: the autograd function that keeps it; tensor:
    the id of one that uses it."""

    __slots__ = ("base", "bytes", "device", "dtype", "key", "kind", "module", "place", "saved_by", "shape", "suffix",
                 "tensor", "until")  # fmt: skip

    def __init__(self, key: int, kind: str, base: Any, suffix: str) -> None:
        self.key, self.kind, self.base, self.suffix = key, kind, base, suffix
        self.place, self.tensor, self.bytes, self.device, self.dtype = NOWHERE, 0, 0, "", ""
        self.shape: list[int] | None = None
        self.module: str | None = None
        self.until: str | None = None
        self.saved_by: str | None = None


class Storages:
    """claim() for each tensor, the best holder of a storage first.  reads_autograd: gradients and graphs hold still;
    claimed: gets the ids of the classes of tensors that are claimed."""

    def __init__(self, reads_autograd: bool, claimed: set[int]) -> None:
        torch = loaded("torch")
        self.reads_autograd, self._claimed = reads_autograd, claimed
        self.found: dict[int, Storage] = {}
        self.classes = family(torch.Tensor)
        base: Any = MRO(torch.Tensor)[1]  # torch 2.1 has another name for it
        disabled = torch._C._disabled_torch_dispatch_impl
        self._plain = {key for key, kind in self.classes.items() if not _has_own_dispatch(kind, base, disabled)}
        self._storage_of = of = base.untyped_storage
        # torch 2.1 has no tensors that share their memory until they are written to: there nothing copies it for this
        self._address = getattr(torch._C, "_data_address", lambda tensor: of(tensor).data_ptr())
        self._dtype, self._shape = base.__dict__["dtype"].__get__, base.__dict__["shape"].__get__
        get = base.__dict__
        self.gradient, self.is_leaf, self.node = (get[name].__get__ for name in ("grad", "is_leaf", "grad_fn"))
        self.requires_grad = get["requires_grad"].__get__

    def is_tensor(self, thing: Any) -> bool:
        return id(type(thing)) in self.classes

    def key(self, tensor: Any) -> int:
        """The address of its memory; 0 if it has none: sparse, on the meta device, a wrapper around others."""
        try:
            return int(self._address(tensor))
        except Exception:
            return 0

    def claim(self, tensor: Any, kind: str, base: Any, suffix: str = "") -> Storage | None:
        """The new row of its storage; None if that is known already, or if it has none."""
        key = self.key(tensor)
        if not key or key in self.found:
            return None
        row = Storage(key, kind, base, suffix)
        row.tensor = id(tensor)
        try:
            storage = self._storage_of(tensor)
            row.bytes, row.device = storage.nbytes(), str(storage.device)
            row.dtype = str(self._dtype(tensor)).removeprefix("torch.")
            row.shape = list(self._shape(tensor)) if id(type(tensor)) in self._plain else None
        except Exception:
            return None
        if not row.bytes or row.device in _NO_MEMORY:
            return None
        self.found[key] = row
        self._claimed.add(id(type(tensor)))
        return row


def _has_own_dispatch(kind: type, base: type, disabled: Any) -> bool:
    """Whether its shape may be told by code of the job's."""
    for each in MRO(kind):
        if each is base or each is loaded("torch").Tensor:
            return False
        own = SPACE(each).get("__torch_dispatch__")
        if own is not None:
            return own is not disabled
    return False
