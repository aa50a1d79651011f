"""One file of a recording: its name, its metadata, how it is written, and whether it can be read.

Used by everything in this room.  Invariant: a file is there as a whole or not at all, and no name is used twice.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import stat
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache, lru_cache
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ..arrays.arrow import ARROW_TYPES
from ..schema import Column
from ..tables import TABLES
from ..tables.declaration import Table

FORMAT = 1
ROWS, OPEN, STATE = "rows", "open", "state"  # kinds; merged ones are m1, m2, …
NO_RANK = "__HIVE_DEFAULT_PARTITION__"  # as readers of Hive's folders write NULL
SUFFIX, _PART = ".parquet", ".part"
_KEY = b"probe"


@dataclass(frozen=True)
class About:
    """What the metadata say.  upto: by agent, the watermark; seen: by agent, the last raw row of each stream; replaces:
    names in the same folder that do not count any more."""

    upto: Mapping[str, int] = field(default_factory=dict)
    seen: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    replaces: tuple[str, ...] = ()

    def plus(self, other: About) -> About:
        """Of the rows of both; what they replace is gone."""
        streams = {agent: _higher(self.seen.get(agent, {}), other.seen.get(agent, {}))
                   for agent in {**self.seen, **other.seen}}  # fmt: skip
        return About(_higher(self.upto, other.upto), streams)


def _higher(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    values = [*one.items(), *other.items()]
    return {name: max(value for each, value in values if each == name) for name in {**one, **other}}


@dataclass(frozen=True)
class Stored:
    """A file that can be read."""

    path: str
    size: int
    rows: int
    columns: tuple[str, ...]
    about: About

    @property
    def name(self) -> str:
        return os.path.basename(self.path)

    @property
    def kind(self) -> str:
        return self.name.partition("-")[0]

    @property
    def written(self) -> str:
        """For sorting: when, and among those of a second by which number."""
        return self.name.partition("-")[2]


class Names:
    """Of the files that this process writes."""

    def __init__(self) -> None:
        self._writer, self._numbers = secrets.token_hex(4), count()

    def next(self, kind: str) -> str:
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())  # for people; the rest makes it unique
        return f"{kind}-{stamp}-{self._writer}-{next(self._numbers):06}{SUFFIX}"


@cache
def stored_types() -> dict[str, Any]:
    """The one type of each column name over all tables; where the tables differ, one that holds all of them."""
    declared: dict[str, set[str]] = {}
    for table in TABLES:
        for column in table.columns:
            declared.setdefault(column.name, set()).add(column.type)
    return {name: _plain(types) for name, types in declared.items()}


def _plain(types: set[str]) -> Any:
    if "VARCHAR" in types:
        return pa.string()
    return pa.int64() if len(types) > 1 else ARROW_TYPES[next(iter(types))]


def is_widened(column: Column) -> bool:
    """Whether files have another type than the table declares."""
    return bool(stored_types()[column.name] != _plain({column.type}))


def stored_schema(table: Table) -> Any:
    """Of its files: without the rank, which is in the path."""
    return pa.schema([(each.name, stored_types()[each.name]) for each in table.columns if each.name != "rank"])


def write(path: Path, schema: Any, tables: Iterable[Any], about: About) -> None:
    """Write the file aside, and rename it once it is on the disk.  Raises OSError; then nothing is there."""
    part = path.with_name(f".{path.name}{_of_host()}")
    said = json.dumps({"format": FORMAT, **asdict(about)}, separators=(",", ":"))
    try:
        with pq.ParquetWriter(part, schema.with_metadata({_KEY: said.encode()}), **_options(schema)) as writer:
            for each in tables:
                writer.write_table(each)
        sync(part)
        os.rename(part, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(part)
        raise
    if about.replaces:  # what goes may not be gone for good before this is there for good
        sync(path.parent)


def _options(schema: Any) -> dict[str, Any]:
    """What makes small files small and quick to write: dictionaries for texts alone, which repeat."""
    texts = [each.name for each in schema if pa.types.is_string(each.type)]
    return {"compression": "zstd", "compression_level": 1, "use_dictionary": texts}


def sync(path: Path) -> None:
    """Have the content of a file or a folder on the disk.  Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(path: str) -> Stored:
    """Raises ValueError for a file that is not one of ours, or not whole; OSError for one that is gone."""
    about = os.stat(path)
    if not stat.S_ISREG(about.st_mode):  # to open a pipe is to wait for its writer
        raise ValueError("it is no regular file")
    return _read(path, about.st_size, about.st_mtime_ns)


@lru_cache(1 << 16)
def _read(path: str, size: int, changed_ns: int) -> Stored:
    try:
        footer = pq.read_metadata(path)
    except (pa.ArrowException, OSError) as error:
        os.stat(path)
        raise ValueError("it is cut off or no Parquet") from error
    said = (footer.metadata or {}).get(_KEY)
    if said is None:
        raise ValueError("no recorder has written it")
    told = json.loads(said)
    if told["format"] > FORMAT:
        raise ValueError(f"it has format {told['format']}, this version reads up to {FORMAT}")
    about = About(told["upto"], told["seen"], tuple(told["replaces"]))
    return Stored(path, size, footer.num_rows, tuple(footer.schema.to_arrow_schema().names), about)


def is_part(name: str) -> bool:
    """Whether it is what a recorder of this host that was killed has left of a file."""
    return name.startswith(".") and name.endswith(SUFFIX + _of_host())


def _of_host() -> str:
    """How parts end; those of other hosts may be just being written."""
    return f".{socket.gethostname()}{_PART}"
