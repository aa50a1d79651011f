"""Retention: the oldest files of a folder of recordings go, by age and by size.

Called by the recorder.  Invariant: the newest file of a table and rank stays, for it says how far the table reaches.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from .archive import Archive
from .folder import listing, remove
from .stored import OPEN, STATE, Stored

_DAY_S = 86_400


@dataclass(frozen=True)
class Keep:
    """bytes, days: how much to keep at most; None for all."""

    bytes: float | None = None
    days: float | None = None


def retain(archive: Archive, keep: Keep, refused: Callable[[str], object] = lambda path: None) -> list[str]:
    """Remove what is too old or too much; the paths of what went.  Raises OSError.  Cost: a look at every file.

    refused: gets the path of what stays because this user may not remove it.
    """
    if keep.bytes is None and keep.days is None:
        return []
    files = sorted(_removable(archive, refused), key=lambda each: each[0])
    size = sum(each.size for _, each, _ in files) if keep.bytes is not None else 0
    gone = list[str]()
    for changed_s, file, is_newest in files:
        is_old = keep.days is not None and changed_s < time.time() - keep.days * _DAY_S
        is_much = keep.bytes is not None and size > keep.bytes
        if (is_old or is_much) and not is_newest:
            try:
                os.unlink(file.path)
                gone.append(file.path)
            except FileNotFoundError:  # a recorder of another host was quicker
                pass
            except PermissionError:
                refused(file.path)
                continue
            size -= file.size
    return gone


def _removable(archive: Archive, refused: Callable[[str], object]) -> Iterator[tuple[float, Stored, bool]]:
    """When it was written, the file, and whether it is the newest of its folder."""
    for folder in archive.folders():
        found = listing(str(folder))
        try:
            remove(folder, found.replaced)  # they would count again without what replaces them
        except FileNotFoundError:  # the folder has gone
            continue
        except PermissionError:
            refused(str(folder))
            continue
        files = found.files
        for file in files:
            with suppress(FileNotFoundError):
                yield os.stat(file.path).st_mtime, file, file is files[-1] or file.kind in (OPEN, STATE)
