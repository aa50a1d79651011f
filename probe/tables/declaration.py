"""What a table is: its name, its columns, the raw streams that it is made of, and how its rows are derived from them.

Every other file of this room declares one Table; the reader, `probe tables`, the comments in DuckDB, the reference
pages and the tests all use that declaration.  Invariant: a declaration can be read without pyarrow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..schema import Column, Columns
from ..snapshot.snapshot import Rank, Snapshot


@dataclass(frozen=True)
class Table:
    """One table.  Exactly one of `derive`, `derive_job` and `derive_catalogue` is given.

    derive: called once for each rank that answered; returns its own columns and `step`, `in_eval`,
    `start_ns`, all of one length and only rows that may be seen (Raw.timeline.visible), `step` or
    `start_ns` as an array; `rank`, `host`, `pid` and `time` are added by the reader.
    derive_job: called once with all ranks; returns every column.
    derive_catalogue: called with the declarations of all tables; returns every column.
    streams: the raw streams it is made of, beside the steps, which every table may use.
    taps: what fills it, by the names in probe.agents, where its streams do not tell.
    by_step: the rows of a step come of what was recorded from some steps before it on, and of nothing earlier; several
    ranks with few rows may be derived as one (probe.query.rank_batch).
    in_blocks: and of nothing later than the end of all that began in the step, so that a long history may be derived
    in parts (probe.query.step_blocks).
    question: what the example answers.
    """

    name: str
    doc: str
    columns: tuple[Column, ...]
    streams: tuple[str, ...] = ()
    derive: Callable[[Rank], Columns] | None = None
    derive_job: Callable[[Snapshot], Columns] | None = None
    derive_catalogue: Callable[[Sequence[Table]], Columns] | None = None
    question: str = ""
    example: str = ""
    taps: tuple[str, ...] = ()
    by_step: bool = False
    in_blocks: bool = False

    @property
    def schema(self) -> str:
        return self.name.split(".")[0]

    @property
    def short_name(self) -> str:
        return self.name.split(".")[1]
