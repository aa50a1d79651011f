"""Recordings whose rows a test writes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from probe.record.stored import NO_RANK, ROWS, About, Names, stored_schema, write
from probe.tables import TABLES

NAMES = Names()


def folder_of(root: Path, table: str, rank: int | None = 0, job: str = "exp7") -> Path:
    return root / f"job={job}" / f"table={table}" / f"rank={NO_RANK if rank is None else rank}"


def plant(
    root: Path, table: str, rows: Iterable[Mapping[str, Any]], rank: int | None = 0, job: str = "exp7",
    about: About | None = None, kind: str = ROWS,
) -> Path:  # fmt: skip
    """One more file with these rows; what they leave out is NULL."""
    (declared,) = (each for each in TABLES if each.name == table)
    schema = stored_schema(declared)
    path = folder_of(root, table, rank, job) / NAMES.next(kind)
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = [{each.name: row.get(each.name) for each in schema} for row in rows]
    write(path, schema, [pa.Table.from_pylist(whole, schema)], about or About())
    return path


def plant_manifest(root: Path, ranks: int = 1, job: str = "exp7", asked: Mapping[str, Any] | None = None) -> None:
    """asked: what the recorder has asked of the first rank, or is said of it besides."""
    said = {str(rank): {"rank": rank, "world_size": ranks, "host": "here", "pid": 100 + rank} for rank in range(ranks)}
    said["0"] |= asked or {}
    (root / f"job={job}").mkdir(parents=True, exist_ok=True)
    (root / f"job={job}" / "job.json").write_text(json.dumps({"format": 1, "job": job, "ranks": said}))
