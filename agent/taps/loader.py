"""Entry of a DataLoader's __next__: a boundary between two iterations also for loops that run in C."""

from __future__ import annotations

import sys
from typing import Any

from ..boundary import Boundary


class Loader:
    """install() and remove() from any thread; works on loops that are running already."""

    def __init__(self, boundary: Boundary) -> None:
        dataloader_py = sys.modules.get("torch.utils.data.dataloader")
        self._class: Any = getattr(dataloader_py, "_BaseDataLoaderIter", None)
        if self._class is not None:
            self._original = self._class.__next__
            self._wrapped = _wrap(self._original, boundary)

    def install(self) -> None:
        if self._class is not None and self._class.__next__ is self._original:
            self._class.__next__ = self._wrapped

    def remove(self) -> None:
        if self._class is not None and self._class.__next__ is self._wrapped:
            self._class.__next__ = self._original


def _wrap(original: Any, boundary: Boundary) -> Any:
    loading = boundary.loading

    def __next__(self: Any) -> Any:
        loading()
        return original(self)

    return __next__
