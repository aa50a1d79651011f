"""What a table is: its name, its columns, the raw streams it is made of, and how its rows are derived from them.

Every other file of this room declares one Table.  The query, `probe tables`, the comments in DuckDB, the reference
pages and the tests all use that declaration.  Invariant: whatever is said about a table comes from its declaration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..derive.partition import Partition
from ..schema import COMMON, Column, Columns
from ..snapshot.snapshot import Snapshot
from ..snapshot.source import Rank
from ..streams import COLLECTIVES, DEVICE, LOADS, MARKS, SPANS

Final = Literal["step", "done", "deposit", "moment", "never"]
STEP: Final = "step"
DONE: Final = "done"
DEPOSIT: Final = "deposit"
MOMENT: Final = "moment"
NEVER: Final = "never"


@dataclass(frozen=True)
class Tap:
    """A tap or sampler of the agent, which probe.agents has a column for and notes name when it is off.

    name: as the agent's facts have it; records: what it records, in the plural; streams: those it alone fills; null:
    when its column is NULL.
    """

    name: str
    records: str
    streams: tuple[str, ...] = ()
    null: str = "The rank does not answer."


TAPS = (
    Tap("forward", "module calls", (SPANS,)),
    Tap("backward", "backward passes", (MARKS,)),
    Tap("optimizer", "optimizer steps", (SPANS,)),
    Tap("device", "times and memory on CUDA devices", (DEVICE,), "The job does not use CUDA."),
    Tap("graphs", "replays of CUDA graphs", (), "The job does not use CUDA."),
    Tap("collectives", "collectives", (COLLECTIVES,)),
    Tap("loader", "batches of loaders", (LOADS,)),
    Tap("process", "samples of the process and its host"),
    Tap("gpu", "samples of devices"),
    Tap("memory", "samples of the memory"),
    Tap("compile", "compilations"),
)


@dataclass(frozen=True)
class Table:
    """One table.  Exactly one of `derive`, `derive_job` and `derive_catalogue` is given.

    derive: called once for each partition, usually a rank; returns the table's own columns and `step`, `in_eval`,
    `start_ns`, all of the same length, with no rows but those that may be seen (part.timeline.visible), and `step` or
    `start_ns` as an array.  The query adds `rank`, `host`, `pid` and `time`.
    derive_job: called once with all ranks; returns every column.
    derive_catalogue: called with the declarations of all tables; returns every column.
    streams: the raw streams it is made of, beside the steps, which every table may use.
    taps: names from TAPS of what fills it, if its streams do not tell.
    by_step: the rows of a step follow from what was recorded from some steps before it to the end of everything that
    began in it, and from nothing else.  So the query fetches and derives only the steps it wants.
    in_blocks: derive() makes the rows of part.steps alone where it has some.  So a long history is derived in blocks of
    steps (probe.query.step_blocks), and rows of finished steps are cached.
    in_batches: derive() asks part.owner() where rows of different ranks could mix, and part.require_agreement() for
    what it keeps only once, so ranks with few rows are derived together (probe.query.rank_batch).
    of_each_rank: the rows of a rank follow from what it has recorded and the last step that all have completed: from
    nothing of other ranks, of the agent's answers or of the reader's machine.  So each host can sum up its own ranks
    (probe.query.decomposition).
    question: what the example answers.
    final: when a recording may take a row, for it does not change any more: STEP (its step is over on all ranks), DONE
    (at its end, by start_ns and duration), DEPOSIT (once all is there that is deposited together in the first stream);
    MOMENT: the table shows a state, the latest of which is kept; NEVER: looking costs the job something, so it is not
    recorded.
    """

    name: str
    doc: str
    columns: tuple[Column, ...]
    streams: tuple[str, ...] = ()
    derive: Callable[[Partition], Columns] | None = None
    derive_job: Callable[[Snapshot], Columns] | None = None
    derive_catalogue: Callable[[Sequence[Table]], Columns] | None = None
    question: str = ""
    example: str = ""
    taps: tuple[str, ...] = ()
    by_step: bool = False
    in_blocks: bool = False
    in_batches: bool = False
    of_each_rank: bool = False
    final: Final = STEP

    @property
    def schema(self) -> str:
        return self.name.split(".")[0]

    @property
    def short_name(self) -> str:
        return self.name.split(".")[1]

    @property
    def filled_by(self) -> list[str]:
        """Names of the taps that record what it is made of."""
        of_streams = (tap.name for stream in self.streams for tap in TAPS if stream in tap.streams)
        return list(self.taps or dict.fromkeys(of_streams))


IDENTITY = COMMON[:3]


def identity(rank: Rank) -> dict[str, Any]:
    """The values of IDENTITY, which tables with rows of their own for a rank begin with."""
    return {"rank": rank.rank, "host": rank.host, "pid": rank.pid}
