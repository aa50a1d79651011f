"""The folder of one table and rank: which of its files count, and how several become one.

Invariant: at any moment the files that count hold each row once, whoever is killed in between.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from .stored import ROWS, SUFFIX, About, Stored, is_part, read, sync, write

LEVELS = (ROWS, "m1", "m2", "m3", "m4", "m5")
TOGETHER = (8, 10, 6, 6, 4)  # files of each level but the last make one of the next
MOST_BYTES = 64 << 20  # of a file that is merged
_ROWS_A_GROUP = 1 << 17


@dataclass(frozen=True)
class Listing:
    """files: those that count, the oldest first; replaced: names of those that do not; skipped: a line about each that
    cannot be read."""

    files: list[Stored]
    replaced: list[str]
    skipped: list[str]


def listing(folder: str) -> Listing:
    """Of a folder that may be written to meanwhile.  Raises nothing: a folder that is gone is empty."""
    while True:
        with suppress(FileNotFoundError):  # a file was merged meanwhile: what replaces it may be missing here
            return _listing(folder)


def _listing(folder: str) -> Listing:
    found, skipped = list[Stored](), list[str]()
    for name in _names(folder):
        path = f"{folder}/{name}"
        try:
            found.append(read(path))
        except (ValueError, PermissionError) as error:
            skipped.append(f"{path} is skipped: {error}.")
    gone = {name for each in found for name in each.about.replaces}
    files = sorted((each for each in found if each.name not in gone), key=lambda each: each.written)
    return Listing(files, [each.name for each in found if each.name in gone], skipped)


def _names(folder: str) -> list[str]:
    """Read twice alike: what is renamed while a folder is read may be missing together with what it replaces."""
    before = None
    while before != (now := _names_once(folder)):
        before = now
    return now


def _names_once(folder: str) -> list[str]:
    with suppress(OSError):
        return sorted(name for name in os.listdir(folder) if name.endswith(SUFFIX) and not name.startswith("."))
    return []


def tidy(folder: Path) -> None:
    """Remove what a recorder that was killed has left: parts, and what has been replaced.  Raises OSError."""
    with suppress(FileNotFoundError):
        for name in filter(is_part, os.listdir(folder)):
            os.unlink(folder / name)
    remove(folder, listing(str(folder)).replaced)


def remove(folder: Path, names: Iterable[str]) -> None:
    """Raises OSError; what is gone already is not missed."""
    names = list(names)
    for name in names:
        with suppress(FileNotFoundError):
            os.unlink(folder / name)
    if names:
        sync(folder)


def merge(folder: Path, next_name: Callable[[str], str], agents: Collection[str] | None = None) -> bool:
    """Make one file of several of the lowest level that has enough; whether there were some.  Raises OSError.

    agents: only files of these: what a recorder of another host has written it holds, and will merge itself.

    Cost: some 10 ms, and a second per million rows; a row group at a time is in memory.
    """
    found = listing(str(folder))
    if found.replaced:  # they would count again once what replaces them is merged
        remove(folder, found.replaced)
    for level, enough in enumerate(TOGETHER):
        group = [
            each for each in found.files
            if each.kind == LEVELS[level] and each.size < MOST_BYTES
            and (agents is None or each.about.upto.keys() <= {*agents})
        ]  # fmt: skip
        if len(group) >= enough:
            _merge(folder, group, next_name(LEVELS[level + 1]))
            return True
    return False


def _merge(folder: Path, group: list[Stored], name: str) -> None:
    names = tuple(each.name for each in group)
    about = replace(reduce(About.plus, (each.about for each in group)), replaces=names)
    schema = pa.unify_schemas([pq.read_schema(each.path).remove_metadata() for each in group])
    write(folder / name, schema, _groups(group, schema), about)
    remove(folder, names)


def _groups(group: list[Stored], schema: Any) -> Iterator[Any]:
    """Their rows, in tables of a good size."""
    waiting, rows = list[Any](), 0
    for each in group:
        with pq.ParquetFile(each.path) as file:
            for number in range(file.num_row_groups):
                waiting.append(_as(file.read_row_group(number), schema))
                rows += len(waiting[-1])
                if rows >= _ROWS_A_GROUP:
                    yield pa.concat_tables(waiting)
                    waiting, rows = [], 0
    if waiting:
        yield pa.concat_tables(waiting)


def _as(table: Any, schema: Any) -> Any:
    """With all columns, NULL where an older version wrote none."""
    count = len(table)
    return pa.table(
        [table.column(each.name) if each.name in table.column_names else pa.nulls(count, each.type) for each in schema],
        schema=schema,
    )
