"""The samples of a profile, summed up by stack: queried from a job, or read from a file that was written before.

Queried for the verb flame; flame makes a tree of them.  Invariant: SUM(seconds) is that of the samples, those without a
stack too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..arrays.integers import Ints
from ..errors import SilentError

if TYPE_CHECKING:
    from ..query.result import Result

Query = Callable[[str], "Result"]
SCHEMA = pa.schema(
    {"rank": pa.int64(), "phase": pa.string(), "thread": pa.string(), "stack": pa.list_(pa.string()),
     "seconds": pa.float64(), "samples": pa.int64()}
)  # fmt: skip

# A profile looks at all threads of a rank at once, and a look stands for the time since the one before: where it does
# not, another profile begins.  A rank that the last profile did not reach has only older ones, which are left out.
_CHOSEN = """WITH looks AS (
  SELECT rank, start_ns, ANY_VALUE(time) AS time, ANY_VALUE(step) AS step, ANY_VALUE(seconds) AS seconds
  FROM python.profile WHERE {steps} GROUP BY rank, start_ns),
begun AS (
  SELECT rank, start_ns, time,
    ABS(start_ns - LAG(start_ns, 1, 0) OVER (PARTITION BY rank ORDER BY start_ns) - 1e9 * seconds) > 1e6 AS begins
  FROM looks),
last AS (
  SELECT rank, MAX(start_ns) FILTER (begins) AS since_ns, MAX(time) FILTER (begins) AS since, MAX(time) AS until
  FROM begun GROUP BY rank),
chosen AS (SELECT rank, {since_ns} AS since_ns FROM last WHERE {chosen})
"""
_ROWS = """SELECT rank, phase, {thread} AS thread, stack, SUM(seconds) AS seconds, COUNT(*) AS samples
FROM python.profile JOIN chosen USING (rank) WHERE start_ns >= since_ns AND {steps} AND {threads} GROUP BY ALL"""
# A look in a step of one second is a hundredth of it if it stands for ten milliseconds.
_STEPS = """SELECT rank, SUM(seconds) * SUM(seconds / duration) / SUM(seconds) FILTER (duration > 0) AS steps
FROM looks JOIN chosen USING (rank) LEFT JOIN (
  SELECT rank, step, duration FROM python.step_trace WHERE sampled IS NOT NULL) USING (rank, step)
WHERE start_ns >= since_ns GROUP BY rank"""
_THREAD = "COALESCE(thread_name, 'threads that Python did not start')"


@dataclass(frozen=True)
class ProfileRows:
    """rows: of SCHEMA; thread is NULL where only main threads are wanted.  steps: how many each rank made meanwhile, if
    that is known."""

    rows: Any
    steps: dict[int, float]

    @property
    def ranks(self) -> list[int]:
        return sorted(set(self.rows["rank"].to_pylist()))

    @property
    def has_threads(self) -> bool:
        return bool(self.rows["thread"].null_count < len(self.rows))

    @property
    def has_phases(self) -> bool:
        return bool(self.rows["phase"].null_count < len(self.rows))

    @property
    def stacks(self) -> int:
        """How many different ones there are, whatever their lines."""
        known = self.rows["stack"].combine_chunks().drop_null()
        functions, _ = functions_of(known)
        return len({functions[begin:end].tobytes() for begin, end in pairwise(known.offsets.to_pylist())})

    @property
    def seconds(self) -> float:
        return float(self.rows["seconds"].to_numpy().sum())

    @property
    def without_stack(self) -> float:
        """The share of the time."""
        lost = self.rows["seconds"].filter(self.rows["stack"].is_null())
        return float(lost.to_numpy().sum()) / self.seconds


def functions_of(stacks: Any) -> tuple[Ints, list[str]]:
    """For each frame of all stacks the place of its function among these: `f (file)` for `f (file:line)`."""
    frames = stacks.flatten().dictionary_encode()
    functions = pc.replace_substring_regex(frames.dictionary, r":-?\d+\)$", ")").dictionary_encode()
    return functions.indices.to_numpy().astype(np.int64)[frames.indices.to_numpy()], functions.dictionary.to_pylist()


def queried(query: Query, remedy: str, steps: tuple[int, int] | None = None, threads: bool = False) -> ProfileRows:
    """Of the last profile; with steps, of these in all profiles.  threads: of all, not only of main threads; remedy:
    what to do if there is none.

    Raises SilentError if there is no such row, QueryError.  Cost: two queries.
    """
    parts = {
        "steps": f"step BETWEEN {steps[0]} AND {steps[1]}" if steps else "TRUE",
        "since_ns": "0" if steps else "since_ns",
        "chosen": "TRUE" if steps else "until >= (SELECT MAX(since) FROM last)",
        "thread": _THREAD if threads else "NULL::VARCHAR",
        "threads": "TRUE" if threads else "is_main",
    }
    rows = query((_CHOSEN + _ROWS).format(**parts)).table.cast(SCHEMA)
    if not len(rows):
        what = f"of steps {steps[0]} to {steps[1]}" if steps else "to show"
        raise SilentError(f"There is no profile {what}.", remedy, "no-profile")
    known = query((_CHOSEN + _STEPS).format(**parts)).to_pylist()
    return ProfileRows(rows, {row["rank"]: row["steps"] for row in known if row["steps"]})
