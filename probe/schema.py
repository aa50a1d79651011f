"""What a column is: its name, type, unit and meaning, and where its values come from.

Every table declares its columns with this (probe/tables/declaration.py).  Invariant: no pyarrow here, so that a
declaration can be read without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# A column's values: a numpy or pyarrow array of the table's length, or a function that makes one when it is asked for.
Columns = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """One column.  type: of SQL, a key of probe.arrays.arrow.ARROW_TYPES; null: when it is NULL ("" never); joins: the
    columns elsewhere that mean the same."""

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


# What every table of a rank's rows begins with; the reader fills all but the last three.
COMMON = (
    Column("rank", "INTEGER", "", "Rank of the process in its job; 0 outside a process group.",
           "RANK or the default group", joins="rank everywhere"),
    Column("host", "VARCHAR", "", "Name of the machine.", "gethostname", joins="host everywhere"),
    Column("pid", "INTEGER", "", "Process id as seen from the reader's machine.", "/proc", joins="pid everywhere"),
    Column("time", "TIMESTAMP", "", "Wall clock of the start, UTC.", "start_ns and a pair of clock readings",
           joins="time everywhere, by ASOF JOIN"),
    Column("start_ns", "BIGINT", "ns", "Start on the host's monotonic clock.", "CLOCK_MONOTONIC",
           joins="start_ns of rows of the same host"),
    Column("step", "BIGINT", "", "The job's step in which it started: the number of optimizer steps completed "
           "before, the same on every rank.", "boundaries between steps", joins="step everywhere"),
    Column("in_eval", "BOOLEAN", "", "Whether an eval of probe caused it.", "spans of evals"),
)  # fmt: skip
