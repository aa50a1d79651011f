"""probe.events: what a recorder has to tell of its own work and of a job that stands; a job that runs has no rows."""

from __future__ import annotations

from ...arrays.arrow import columns_of
from ...schema import Column, Columns
from ...snapshot.snapshot import Snapshot
from ..declaration import DONE, Table

_OF_ALL = "It is not about one rank."
_NOT_LOST = "It is no loss of rows."


def derive(job: Snapshot) -> Columns:
    return columns_of(TABLE.columns, [])


TABLE = Table(
    name="probe.events",
    doc="One row per event of a recording: its begin and end, pauses, rows that are lost, and stretches in which the "
    "job stood.  Only recordings have rows.",
    columns=(
        Column("rank", "INTEGER", "", "The rank that it is about.", "recorder", _OF_ALL, "rank everywhere"),
        Column("host", "VARCHAR", "", "Name of the recorder's machine.", "gethostname", joins="host everywhere"),
        Column("time", "TIMESTAMP", "", "Wall clock of the recorder, UTC.", "recorder",
               joins="time everywhere, by ASOF JOIN"),
        Column("event", "VARCHAR", "", "begun, ended, paused, resumed, lost (rows that the agent's memory had "
               "overwritten before they were read), clock (it was set), kept (what retention may not remove), stands "
               "(no step came: the text says why) or steps (they come again).", "recorder"),
        Column("text", "VARCHAR", "", "What happened, in a sentence.", "recorder"),
        Column("lost_stream", "VARCHAR", "", "The stream of the lost rows.", "recorder", _NOT_LOST,
               "streams of probe.tables"),
        Column("lost_rows", "BIGINT", "", "How many raw rows of it are lost.", "numbers of the rows", _NOT_LOST),
    ),
    derive_job=derive,
    final=DONE,
    question="When was recording paused, and what is lost?",
    example="SELECT time, rank, event, text FROM probe.events ORDER BY time",
)  # fmt: skip
