"""What a query returns: its rows, the ranks they come from, notes for the user, and what it cost.

Made by probe.query.database.  Invariant: whatever a program may want to know is a field or a code, never only text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from ..errors import SilentError
from ..protocol import NO_GROUP
from ..snapshot.align import COUNTED, GROUP_SEQ
from ..snapshot.call_steps import CALL
from ..snapshot.snapshot import Snapshot
from ..snapshot.source import Rank, RankLeft
from ..snapshot.steps_known import StepsKnown
from ..streams import MARKS, SAMPLES
from ..tables.declaration import Table
from ..text import some, title

if TYPE_CHECKING:
    from ..snapshot.scans import FetchAccount, HostFetch

_LITTLE, _CHANCE = 0.05, 3  # of a mean step; standard errors
SILENT, TAP_OFF, NO_STEPS, UNSAMPLED = "silent", "tap-off", "no-steps", "unsampled"  # codes of notes
UNMATCHED, SKIPPED, UNLISTED = "unmatched-steps", "skipped-file", "unlisted"
_LINE = "{:>4}  {:<12}{:>12}{:>10}{:>9}"
_MAX_LINES = 40  # the ranks that sent most are shown


@dataclass(frozen=True)
class Note:
    """Something to know about a result.  text: a line for a person; ranks: those it is about.

    code: silent (ranks did not answer), tap-off (something is not recorded), no-steps (no whole step since the attach
    yet), unsampled (steps without rows), unmatched-steps (numbers that are only a rank's own), unlisted (small tensors
    are left out) or skipped-file (a file of a recording cannot be read).

    Example: `if any(note.code == "tap-off" for note in job.query(sql).notes): ...`
    """

    code: str
    text: str
    ranks: tuple[int, ...] = ()

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Coverage:
    """Which ranks a result covers, and how long they took to answer.

    answered, silent: every rank of the job is in one of them; read: silent ranks whose memory was read instead.

    Example: `missing = set(result.coverage.silent) - set(result.coverage.read)`
    """

    answered: tuple[int, ...]
    silent: tuple[int, ...]
    read: tuple[int, ...]
    seconds: float

    @classmethod
    def of(cls, snapshot: Snapshot, seconds: float) -> Coverage:
        read = tuple(each.rank for each in snapshot.read)
        answered = tuple(rank.rank for rank in snapshot.ranks if rank.rank not in read)
        return cls(answered, tuple(sorted([*read, *(each.rank for each in snapshot.silent)])), read, seconds)

    def require(self, min_ranks: int, endpoint: str) -> Coverage:
        """Raises SilentError if it covers fewer ranks."""
        if self.total < min_ranks:
            message = f"{endpoint} has {self.total} rank{'s' * (self.total != 1)}, not {min_ranks}."
            raise SilentError(message, "For the ranks of all hosts: job://HOST:PORT")
        if self.seen < min_ranks:
            raise SilentError(f"Fewer than {min_ranks} ranks: {self}.", f"Why: probe {endpoint} hang")
        return self

    @property
    def total(self) -> int:
        return len(self.answered) + len(self.silent)

    @property
    def seen(self) -> int:
        """The number of ranks that the result has rows of."""
        return len(self.answered) + len(self.read)

    def __str__(self) -> str:
        text = f"answered {len(self.answered)}/{self.total} ranks in {self.seconds:.1f} s"
        text += f", silent: {some(self.silent)}" if self.silent else ""
        return f"{text}; read from memory: {title(self.read)}" if self.read else text


@dataclass(frozen=True)
class Fetch:
    """What one rank sent of one stream.

    Example: `sum(fetch.bytes for fetch in job.query(sql).cost.fetches)`
    """

    rank: int
    stream: str
    rows: int
    bytes: int
    ms: float


@dataclass(frozen=True)
class Cost:
    """What a query cost.  hosts: what those sent that answered for their own ranks instead of sending rows; declined:
    why others did not, a sentence each.

    fetching_s is a part of tables_s (by table), which is a part of total_s.

    Example: `print(*job.query(sql).cost.lines())`
    """

    fetches: tuple[Fetch, ...]
    fetching_s: float
    tables_s: Mapping[str, float]
    total_s: float
    hosts: tuple[HostFetch, ...] = ()
    declined: tuple[str, ...] = ()

    @classmethod
    def of(cls, account: FetchAccount, tables_s: Mapping[str, float], total_s: float) -> Cost:
        fetches = tuple(Fetch(scan.rank.rank, scan.stream, scan.rows, scan.bytes, scan.ms) for scan in account.scans)
        return cls(fetches, account.seconds, dict(tables_s), total_s, tuple(account.hosts), tuple(account.declined))

    def lines(self) -> list[str]:
        """What `--explain-fetch` shows."""
        largest = sorted(self.fetches, key=lambda each: -each.bytes)[:_MAX_LINES]
        lines = [_LINE.format("rank", "stream", "rows", "MB", "ms")] if largest else []
        lines += [
            _LINE.format(each.rank, each.stream, f"{each.rows:,}", f"{each.bytes / 1e6:.2f}", f"{each.ms:.0f}")
            for each in sorted(largest, key=lambda each: (each.rank, each.stream))
        ]
        if len(self.fetches) > _MAX_LINES:
            lines.append(f"      and {len(self.fetches) - _MAX_LINES} smaller ones")
        for each in self.hosts:
            sent = f"{each.bytes / 1e6:.3f} MB in {each.ms:.0f} ms"
            lines.append(f"{each.host or 'a host'} answered for its own ranks {some(each.ranks)}: {sent}")
        lines += self.declined
        rows, size = sum(each.rows for each in self.fetches), sum(each.bytes for each in self.fetches) / 1e6
        tables = ", ".join(f"{name} {seconds * 1e3:.0f} ms" for name, seconds in self.tables_s.items())
        making_s = sum(self.tables_s.values())
        derived_ms, rest_ms = (1e3 * max(0.0, s) for s in (making_s - self.fetching_s, self.total_s - making_s))
        return [
            *lines,
            f"fetched {rows:,} rows, {size:.2f} MB in {self.fetching_s * 1e3:.0f} ms",
            f"derived tables in {derived_ms:.0f} ms" + (f" (fetching included: {tables})" if tables else ""),
            f"DuckDB and everything else took {rest_ms:.0f} ms",
        ]


@dataclass(frozen=True)
class Result:
    """The rows of a query as a pyarrow.Table in `table`.  Iterating gives one dict a row.

    Example: `for row in job.query("SELECT rank, step FROM probe.agents"): print(row["rank"], row["step"])`
    """

    table: Any
    coverage: Coverage
    notes: tuple[Note, ...]
    cost: Cost

    def to_pylist(self) -> list[dict[str, Any]]:
        return list(self.table.to_pylist())

    def to_pandas(self) -> Any:
        return self.table.to_pandas()

    def column(self, name: str) -> Any:
        """A column as a pyarrow.ChunkedArray."""
        return self.table.column(name)

    @property
    def num_rows(self) -> int:
        return int(self.table.num_rows)

    @property
    def column_names(self) -> list[str]:
        return list(self.table.column_names)

    def __len__(self) -> int:
        return self.num_rows

    def __str__(self) -> str:
        return str(self.table)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in self.table.to_batches():
            yield from batch.to_pylist()


def notes_of(
    snapshot: Snapshot, coverage: Coverage, scanned: Iterable[Table], endpoint: str,
    timeline: Callable[[Rank], StepsKnown] = attrgetter("timeline"),
) -> tuple[Note, ...]:  # fmt: skip
    """What a user should know beside the rows: a result that lacks something always has a note about it.

    scanned: the tables that the query read; endpoint: of the job, for the commands in the notes; timeline: what is
    known of a rank's steps.
    """
    tables = [table for table in scanned if table.derive is not None or table.streams]
    silent = [Note(SILENT, str(coverage), coverage.silent)] if coverage.silent else []
    known = _known(snapshot, tables, timeline)
    return (
        *silent,
        *_taps_off(snapshot, tables),
        *_without_steps(snapshot, tables, known),
        *_unmatched(tables, known),
        *_unsampled(tables, endpoint, known),
    )


def _known(
    snapshot: Snapshot, tables: Sequence[Table], timeline: Callable[[Rank], StepsKnown]
) -> dict[Rank, StepsKnown]:
    """What is known of the ranks' steps, but of calls only where they matter.  A rank that ends now is not in it."""
    known, have_steps = {}, any(table.streams != (SAMPLES,) for table in tables)
    for rank in [*snapshot.ranks] if tables else ():
        with suppress(RankLeft, SilentError):
            if have_steps or rank.facts.step_ends != CALL:
                known[rank] = timeline(rank)
    return known


def _taps_off(snapshot: Snapshot, tables: Iterable[Table]) -> list[Note]:
    """A job without a process group has no collectives, and lacks none: that is told of tables of nothing else."""
    names = dict.fromkeys(tap for table in tables for tap in table.filled_by)
    fill_alone = {table.filled_by[0] for table in tables if len(table.filled_by) == 1}
    off: dict[tuple[str, str], list[int]] = {}
    for rank in snapshot.ranks:
        for name in names:
            state = rank.facts.taps.get(name, "on")
            if state != "on" and (state != NO_GROUP or name in fill_alone):
                off.setdefault((name, state), []).append(rank.rank)
    return [
        Note(TAP_OFF, f"rank {some(ranks)}: {name} is {state}", tuple(ranks)) for (name, state), ranks in off.items()
    ]


def _without_steps(snapshot: Snapshot, tables: Iterable[Table], known: Mapping[Rank, StepsKnown]) -> list[Note]:
    if snapshot.open_steps or all(table.streams == (SAMPLES,) for table in tables):
        return []
    unknown = {rank for rank in known if rank.facts.torch and rank.facts.step_ends != CALL}
    stepping = [rank for rank, steps in known.items() if steps.steps or rank in unknown]
    late = tuple(rank.rank for rank in stepping if known[rank].completed is None)
    text = f"rank {some(late)}: no whole step since the attach yet (--open shows the one in progress)"
    return [Note(NO_STEPS, text, late)] if late else []


def _unmatched(tables: Iterable[Table], known: Mapping[Rank, StepsKnown]) -> list[Note]:
    """Ranks that nothing relates to the others, such as those of a job without a process group.  Where no rank knows
    the job's own number, that of the rank attached first stands for it."""
    if not any(column.name == "step" for table in tables for column in table.columns):
        return []
    stepping = [rank for rank, steps in known.items() if rank.facts.step_ends != CALL and steps.steps]
    if all(rank.facts.step_source in (COUNTED, GROUP_SEQ) for rank in stepping):
        stepping = sorted(stepping, key=lambda rank: rank.facts.attached_wall_ns)[1:]
    ranks = tuple(sorted(rank.rank for rank in stepping if rank.facts.step_source == COUNTED))
    text = f"rank {some(ranks)}: steps are counted from the attach: the same number is another step on other ranks"
    return [Note(UNMATCHED, text, ranks)] if ranks else []


def _odd(known: StepsKnown) -> str:
    """How far sampled steps differ from all, in words, if that is neither little nor chance."""
    sampled, every, error = known.mean_ns
    if not abs(sampled - every) > max(_LITTLE * every, _CHANCE * error):
        return ""
    return f", and took {abs(sampled / every - 1):.0%} {'more' if sampled > every else 'less'} time than the average"


def _unsampled(tables: Iterable[Table], endpoint: str, known: Mapping[Rank, StepsKnown]) -> list[Note]:
    """One short line.  Names the rank that lacks most steps, and the one that lacks least if the two differ."""
    if not any(MARKS in table.streams for table in tables):
        return []
    missing = {rank: steps.unsampled[0] for rank, steps in known.items()}
    most = max(missing, key=missing.__getitem__, default=None)
    if most is None or not missing[most]:
        return []
    steps = known[most].unsampled[1]
    text = f"{steps - missing[most]} of {steps} steps were sampled"
    least = min(missing, key=missing.__getitem__)
    if missing[least] != missing[most]:
        text += f" on rank {most.rank}, {known[least].unsampled[1] - missing[least]} on rank {least.rank}"
    with suppress(RankLeft, SilentError):  # it may have to fetch evals
        text += _odd(known[most])
    settings = most.facts.sampling
    if settings is not None and settings.sample != 1:
        text += f"; for all: probe {endpoint} set sample=1"
    return [Note(UNSAMPLED, text, tuple(rank.rank for rank, count in missing.items() if count))]
