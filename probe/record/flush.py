"""One flush: the rows of every table that have become final go into files, for each rank and for the job.

Called by probe.record.recorder.  Invariant: watermarks move only with the file that holds the rows before them, or
where there are none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc

from ..arrays.arrow import table_of
from ..derive.partition import Partition
from ..errors import SilentError
from ..query.derived_cache import first_open
from ..snapshot.rows import Rows
from ..snapshot.snapshot import Snapshot
from ..snapshot.source import Rank, RankLeft
from ..streams import CALLS, SAMPLES, STEPS, WRITTEN
from ..tables import TABLES
from ..tables.declaration import DEPOSIT, DONE, MOMENT, STEP, Table
from . import fresh
from .archive import RANK
from .archive import TABLE as OF_TABLE
from .fresh import FAR
from .sources import hold_only, see
from .stored import NO_RANK, OPEN, ROWS, STATE, Names
from .written import Written

_OF_RANKS = [table for table in TABLES if table.derive is not None and table.final in (STEP, DONE)]
_DEPOSITED = [table for table in TABLES if table.final == DEPOSIT]
_OF_JOB = [table for table in TABLES if table.derive_job is not None and table.final == STEP]
_MOMENTS = [table for table in TABLES if table.final == MOMENT]
_JOINT = {STEPS, *(stream for table in _OF_JOB for stream in table.streams)}  # which all ranks are read of at once
_AT_ONCE = {SAMPLES, CALLS}  # streams of tables that wait for no step
_BY_TIME = {stream: slot for stream, slot in WRITTEN.items() if all(stream not in each.streams for each in _DEPOSITED)}
_STEPS_BEFORE, _ROWS_BEFORE = 70, 4  # steps in a window: for what is usual, and for what runs across a boundary
_BEFORE_NS = 200_000_000  # rows are packed a moment after their time was read
_SAMPLES_NS = 5_000_000_000  # for rates, which need the sample before
Lost = Callable[[Rank, str, int], object]  # is told how many rows of a stream are gone


@dataclass
class _OfAgent:
    """What is kept of an agent between two flushes.  steps, rows, at_once: where the next window begins in each kind of
    stream; seen: the last row of each that is not needed any more; deposited: the last row of each at the last flush;
    open: how many rows each had when it was last seen to stand still."""

    steps: int | None = None
    rows: int | None = None
    at_once: int | None = None
    seen: dict[str, int] = field(default_factory=dict)
    deposited: dict[str, int] = field(default_factory=dict)
    open: Mapping[str, int] = field(default_factory=dict)


class Flushes:
    """folder: of the job; lost: is told of rows that nobody has read."""

    def __init__(self, folder: Path, names: Names, lost: Lost) -> None:
        self._folder, self._names, self._lost = folder, names, lost
        self._agents: dict[str, _OfAgent] = {}
        self._written: dict[tuple[str, int | None], Written] = {}

    def begin(self, rank: Rank, stream: str) -> int | None:
        """Where the next window begins; None for what is deposited, which happened long before."""
        kept = self._agents.get(_agent(rank))
        if kept is None or stream not in _BY_TIME:
            return None
        if stream in _AT_ONCE:
            return kept.at_once
        return kept.steps if stream == STEPS else kept.rows

    def written(self, table: Table, rank: int | None) -> Written:
        """Raises OSError."""
        key = table.name, rank
        if key not in self._written:
            of_table = self._folder / f"{OF_TABLE}{table.name}"
            self._written[key] = Written(of_table / f"{RANK}{NO_RANK if rank is None else rank}", table, self._names)
        return self._written[key]

    def forget(self) -> None:
        """After a failure: what the files say counts."""
        self._written.clear()

    def merge(self) -> None:
        """Raises OSError."""
        for each in self._written.values():
            each.merge()

    def flush(self, job: Snapshot, ended: Collection[str], stops: bool, agents: Collection[str] = ()) -> None:
        """ended: agents of which everything is final; stops: nobody may come back for what is not final yet; agents:
        that should be in it; what is of all ranks waits for those that could not be read.

        Raises OSError; what was written until then stays.
        """
        reached = dict[Rank, int]()
        for rank in job.one_by_one():
            with suppress(RankLeft, SilentError):
                reached[rank] = self._of_rank(rank, _agent(rank) in ended, stops)
                self._look_back(rank, reached[rank])
        if not stops and not set(agents) <= {_agent(rank) for rank in job.ranks}:
            return
        steps = [self._of_job(table, job, ended, stops) for table in _OF_JOB]
        for rank, moment in reached.items():
            with suppress(RankLeft):
                self._look_ahead(rank, min([moment, *(fresh.begin_of(rank, step) for step in steps)]))
            rank.forget()

    # ---- tables of a rank

    def _of_rank(self, rank: Rank, is_last: bool, stops: bool) -> int:
        """Before which moment no table needs rows any more."""
        kept = self._kept(rank)
        reached = {table: self._of_table(table, rank, kept, is_last, stops) for table in _OF_RANKS}
        if stops or rank.timeline.stuck:
            kept.open = {stream: rank.recorded(stream) for table in _OF_RANKS for stream in table.streams}
        return min(upto for table, upto in reached.items() if table.final == STEP)

    def _kept(self, rank: Rank) -> _OfAgent:
        agent = _agent(rank)
        if agent not in self._agents:
            self._agents[agent] = kept = _OfAgent()
            for table in _OF_RANKS:
                kept.seen |= self.written(table, rank.rank).seen(agent)
            for table in _DEPOSITED:
                self._begin_deposits(table, rank, kept)
        return self._agents[agent]

    def _begin_deposits(self, table: Table, rank: Rank, kept: _OfAgent) -> None:
        """What has been written is seen; where nothing has, what was overwritten before anybody recorded."""
        stream, upto = table.streams[0], self.written(table, rank.rank).upto(_agent(rank))
        before = max(0, rank.recorded(stream) - rank.facts.ring_rows(stream))
        kept.seen[stream] = kept.seen.get(stream, before) if upto is None else upto

    def _of_table(self, table: Table, rank: Rank, kept: _OfAgent, is_last: bool, stops: bool) -> int:
        """Write what is final; up to where that is."""
        agent, written = _agent(rank), self.written(table, rank.rank)
        since, until = written.upto(agent), FAR if is_last else fresh.until(table, rank, stops)
        since = -FAR if since is None else since
        opens = table.final == STEP and not is_last and (stops or self._stands(table, rank, kept))
        if until <= since and not opens:
            return since
        if table.streams and not any(rank.recorded(stream) for stream in table.streams):
            written.reached(agent, until)
            return until
        chosen = fresh.Chosen(table, rank, since, until)
        self._put(written, agent, ROWS, chosen.final, lambda: written.reached(agent, chosen.until, kept.seen))
        if opens:
            self._put(written, agent, OPEN, chosen.open, lambda: None)
        return chosen.until

    def _stands(self, table: Table, rank: Rank, kept: _OfAgent) -> bool:
        """Whether the rank is stuck, and has recorded rows since that was seen before."""
        recorded = {stream: rank.recorded(stream) for stream in table.streams}
        return rank.timeline.stuck and not recorded.items() <= kept.open.items()

    def _put(
        self, written: Written, agent: str, kind: str, tables: Callable[[], Iterator[Any]], reached: Callable[[], None]
    ) -> None:
        """Write the tables, if they have rows."""
        rows = tables()
        first = next(rows, None)
        reached()
        if first is not None:
            written.add(kind, [agent], _chain(first, rows))

    def _look_back(self, rank: Rank, reached: int) -> None:
        """Which rows are not needed any more: those before the moment `reached`; what is of all ranks needs few."""
        kept, settled = self._kept(rank), rank.now_ns - fresh.SETTLE_NS
        self._tell_lost(rank, kept)
        if rank.timeline.incomplete and reached != -FAR:
            moments = {each: settled if each in _AT_ONCE else reached for each in _BY_TIME if each not in _JOINT}
            see(rank, moments, kept.seen)
        hold_only(rank, _JOINT)

    def _look_ahead(self, rank: Rank, reached: int) -> None:
        """Where the next windows begin."""
        kept, settled = self._kept(rank), rank.now_ns - fresh.SETTLE_NS
        kept.at_once = None if fresh.is_unnumbered(rank) else settled - _SAMPLES_NS
        if not rank.timeline.incomplete or reached == -FAR:  # calls are counted from the first one on
            return
        step = int(rank.timeline.step(np.array([reached]))[0])
        begin = fresh.begin_of(rank, step - _ROWS_BEFORE)
        kept.rows = None if begin == -FAR else begin - _BEFORE_NS
        begin = fresh.begin_of(rank, step - _STEPS_BEFORE)
        kept.steps = kept.steps if begin == -FAR else begin - _BEFORE_NS
        see(rank, dict.fromkeys(_JOINT, reached), kept.seen)

    def _tell_lost(self, rank: Rank, kept: _OfAgent) -> None:
        for stream, seen in kept.seen.items():
            gone = rank.recorded(stream) - rank.facts.ring_rows(stream) - seen
            if gone > 0:
                self._lost(rank, stream, gone)
                kept.seen[stream] += gone

    # ---- tables of the job, and those that show a moment

    def _of_job(self, table: Table, job: Snapshot, ended: Collection[str], stops: bool) -> int:
        """Before which step it needs no rows any more."""
        assert table.derive_job is not None
        if not job.ranks or not any(rank.recorded(stream) for rank in job.ranks for stream in table.streams):
            return FAR
        agents, written = [_agent(rank) for rank in job.ranks], self.written(table, None)
        is_last = set(agents) <= set(ended)
        known = [upto for each in agents if (upto := written.upto(each)) is not None]  # others may join
        since = max(known, default=-FAR)
        until = FAR if is_last else _over(table, job, ended)
        if until <= since and not stops:
            return since
        rows = table_of(table.columns, table.derive_job(job))
        step = fresh.numbers(rows, "step")
        until = until if is_last else max(since, min(until, fresh.held_back(rows, step, job.ranks[0])))
        final = (step >= since) & (step < until)
        for agent in agents:
            written.reached(agent, until)
        if final.any():
            written.add(ROWS, agents, [fresh.stored(table, rows, final)])
        if stops and not is_last and (step >= until).any():
            written.add(OPEN, agents, [fresh.stored(table, rows, step >= until)])
        return until

    def moments(self, job: Snapshot) -> None:
        """Keep what the tables show that show a moment.  Raises OSError, SilentError."""
        for rank in job.one_by_one():
            with suppress(SilentError):
                for table in _MOMENTS:
                    self._moment(table, job, rank)
            rank.forget(STEPS)

    def _moment(self, table: Table, job: Snapshot, rank: Rank) -> None:
        """Of this rank, the only one of the job at this time."""
        assert table.derive_job is not None
        rows = table_of(table.columns, table.derive_job(job))
        rows = rows.filter(pc.equal(rows["rank"], rank.rank))
        if len(rows) and not rank.left:
            written = self.written(table, rank.rank)
            written.reached(_agent(rank), 0)
            written.add(STATE, [_agent(rank)], [fresh.stored(table, rows, np.ones(len(rows), np.bool_))])

    def deposits(self, whole: Callable[[], Snapshot], job: Snapshot, ended: Collection[str]) -> None:
        """Write what has been deposited, once it rests.  ended: agents that are not waited for; whole: takes a snapshot
        with all rows.

        Raises OSError.
        """
        due = dict[str, list[tuple[Table, int]]]()
        for rank in job.ranks:
            kept = self._kept(rank)
            for table in _DEPOSITED:
                stream = table.streams[0]
                last, before = rank.recorded(stream), kept.deposited.get(stream, 0)
                rests = last and (_agent(rank) in ended or last == before)
                since = self.written(table, rank.rank).upto(_agent(rank)) or 0 if rests else last
                if last > since:
                    due.setdefault(_agent(rank), []).append((table, since))
            kept.deposited = {table.streams[0]: rank.recorded(table.streams[0]) for table in _DEPOSITED}
        for rank in whole().one_by_one() if due else ():
            for table, since in due.get(_agent(rank), []):
                with suppress(RankLeft, SilentError):
                    self._deposit(table, rank, since)
            rank.forget(STEPS)

    def _deposit(self, table: Table, rank: Rank, since: int) -> None:
        stream = table.streams[0]
        every = rank.rows(stream)
        new = every.of(every["seq"] > since)

        def rows(asked: str) -> Rows:
            return new if asked == stream else rank.rows(asked)

        (piece,) = fresh.pieces(table, Partition(rank, rows, rank.timeline))
        found = fresh.whole(table, piece)
        written = self.written(table, rank.rank)
        self._kept(rank).seen[stream] = last = int(every["seq"].max(initial=since))
        written.reached(_agent(rank), last)
        if len(found):
            written.add(ROWS, [_agent(rank)], [fresh.stored(table, found, np.ones(len(found), np.bool_))])


def _over(table: Table, job: Snapshot, ended: Collection[str]) -> int:
    """Before which step all ranks are through; what those that have ended know of the last steps goes with them."""
    until = min(first_open(rank, table.streams) for rank in job.ranks)
    goes = job.completed is not None and any(_agent(rank) in ended for rank in job.ranks)
    return max(until, min(map(fresh.first_unsettled, job.ranks))) if goes else until


def _agent(rank: Rank) -> str:
    return rank.facts.id or f"rank {rank.rank}"


def _chain(first: Any, others: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from others
