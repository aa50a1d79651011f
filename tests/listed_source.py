"""A source of which the test writes every row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from probe.arrays.integers import Ints
from probe.errors import SilentError
from probe.snapshot.snapshot import Snapshot
from probe.snapshot.source import Rank, Source


class ListedSource(Source):
    """tables: the rows of each stream of each rank; answers: what each rank answers to each kind of request; asked: the
    streams and kinds that were asked for, in order."""

    def __init__(
        self, tables: Mapping[Rank, Mapping[str, Any]], answers: Mapping[str, Mapping[Rank, Any]] | None = None
    ) -> None:
        self.tables, self.answers = tables, answers or {}
        self.asked: list[str] = []

    def ranks(self) -> Sequence[Rank]:
        return list(self.tables)

    def rows(self, stream: str, since_ns: Mapping[Rank, int | None]) -> dict[Rank, Ints]:
        self.asked.append(stream)
        return {
            rank: np.array(self.tables[rank].get(stream, []), np.int64).reshape(-1, len(rank.slots(stream)))
            for rank in since_ns
        }

    def ask(self, kind: str, ranks: Sequence[Rank]) -> Mapping[Rank, Any]:
        self.asked.append(kind)
        return self.answers.get(kind, {})


class EndingSource(ListedSource):
    """Rank 1 ends once rows of this stream are asked for (None: of any)."""

    def __init__(self, *listed: Any, stream: str | None = None) -> None:
        super().__init__(*listed)
        self._stream = stream

    def rows(self, stream: str, since_ns: Mapping[Rank, int | None]) -> dict[Rank, Ints]:
        for rank in since_ns:
            if rank.rank == 1 and self._stream in (None, stream):
                rank.leave(SilentError("It ended."))
        return {rank: rows for rank, rows in super().rows(stream, since_ns).items() if not rank.left}


def listed(tables: Mapping[Rank, Mapping[str, Any]], open_steps: bool = False) -> Snapshot:
    """These ranks with these rows."""
    return Snapshot([ListedSource(tables)], open_steps)
