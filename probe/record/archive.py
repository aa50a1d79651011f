"""A folder of recordings: which jobs are in it, and which files of a table count.

Used by what reads recordings and by retention.  Invariant: it keeps nothing but footers, so a look is of its moment.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..client.endpoints import JOB
from .folder import listing
from .stored import Stored

TABLE, RANK = "table=", "rank="


@dataclass(frozen=True)
class Archive:
    """folder: it holds `job=…`, or is one of these itself."""

    folder: Path

    @property
    def jobs(self) -> list[Path]:
        """The folders of the jobs, by name."""
        return [self.folder] if self.folder.name.startswith(JOB) else list(below(self.folder, JOB))

    @property
    def ranks(self) -> list[int]:
        """Of all jobs; those with a folder."""
        names = {folder.name.removeprefix(RANK) for folder in self.folders()}
        return sorted(int(name) for name in names if name.isdecimal())

    def files(self, table: str) -> tuple[list[Stored], list[str]]:
        """Those of a table that count, and a line about each that cannot be read."""
        files, skipped = list[Stored](), list[str]()
        for folder in self.folders(table):
            found = listing(str(folder))
            files += found.files
            skipped += found.skipped
        return files, skipped

    def folders(self, table: str = "") -> Iterator[Path]:
        """Of each job and rank; of every table by default."""
        for job in self.jobs:
            for of_table in [job / f"{TABLE}{table}"] if table else list(below(job, TABLE)):
                yield from below(of_table, RANK)


def below(folder: Path, prefix: str) -> Iterator[Path]:
    """The folders in it whose names begin so, by name; none where it is gone."""
    names = list[str]()
    with suppress(OSError):
        names = sorted(name for name in os.listdir(folder) if name.startswith(prefix))
    return (folder / name for name in names if os.path.isdir(folder / name))
