"""What a table is: its name, its columns with type, unit and meaning, its raw streams, and how rows come of them.

Every file of probe/tables declares one Table; the reader, `probe tables`, the comments in DuckDB, the
reference pages and the tests all go by that declaration.  Invariant: no pyarrow here, so that a
declaration can be read without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .snapshot.snapshot import Job, Raw

# A column's values: a numpy or pyarrow array of the table's length, or a function that makes one when it is asked for.
Columns = Mapping[str, Any]

# SQL types a column may have, and with them the Arrow types of probe.arrays.arrow.ARROW_TYPES
TYPES = ("BOOLEAN", "INTEGER", "BIGINT", "DOUBLE", "VARCHAR", "TIMESTAMP", "DOUBLE[]", "INTEGER[]", "VARCHAR[]")


@dataclass(frozen=True)
class Column:
    """One column.  null: when it is NULL ("" never); joins: the columns elsewhere that mean the same."""

    name: str
    type: str
    unit: str
    doc: str
    source: str = ""
    null: str = ""
    joins: str = ""

    @property
    def remarks(self) -> list[str]:
        """What is to say of it beside unit and doc, a sentence each."""
        said = {"NULL": self.null, "From": self.source, "Joins": self.joins}
        return [f"{word}: {text.rstrip('.')}." for word, text in said.items() if text]


@dataclass(frozen=True)
class Table:
    """One table.  Exactly one of `derive` and `derive_job` is given.

    derive: called once for each rank that answered; returns its own columns and `step`, `in_eval`,
    `start_ns`, all of one length and only rows that may be seen (Raw.timeline.visible), `step` or
    `start_ns` as an array; `rank`, `host`, `pid` and `time` are added by the reader.
    derive_job: called once with all ranks; returns every column.
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
    derive: Callable[[Raw], Columns] | None = None
    derive_job: Callable[[Job], Columns] | None = None
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


# What every table of a rank's rows begins with; the reader fills all but the last three.
COMMON = (
    Column(
        "rank",
        "INTEGER",
        "",
        "Rank of the process in its job; 0 outside a process group.",
        "RANK or the default group",
        joins="rank everywhere",
    ),
    Column("host", "VARCHAR", "", "Name of the machine.", "gethostname", joins="host everywhere"),
    Column("pid", "INTEGER", "", "Process id as the reader's machine sees it.", "/proc", joins="pid everywhere"),
    Column(
        "time",
        "TIMESTAMP",
        "",
        "Wall clock of the start, UTC.",
        "start_ns and a pair of clock readings",
        joins="time everywhere, by ASOF JOIN",
    ),
    Column(
        "start_ns",
        "BIGINT",
        "ns",
        "Start on the host's monotonic clock.",
        "CLOCK_MONOTONIC",
        joins="start_ns of rows of the same host",
    ),
    Column(
        "step",
        "BIGINT",
        "",
        "The job's step in which it started: optimizer steps completed before, the same number on every rank.",
        "boundaries between steps",
        joins="step everywhere",
    ),
    Column("in_eval", "BOOLEAN", "", "Whether an eval of probe caused it.", "spans of evals"),
)
