"""A query of a job on several hosts that each host's server answers for its own ranks: parts travel, and no rows.

Called by probe.query.database.  Invariant: the answer is that over all rows; where a host does not answer, for whatever
reason, nothing has happened and the rows are fetched.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa

from .. import protocol as wire
from ..client.agent_link import AgentLink
from ..client.client import Call, Client, Header
from ..client.endpoints import Address
from ..client.server_socket import ServerSocket
from ..snapshot.call_steps import CALL
from ..snapshot.pinned import pin
from ..snapshot.scans import AgentRank, FetchAccount, HostFetch, stored_bytes
from ..snapshot.snapshot import Snapshot
from ..snapshot.source import Rank
from ..snapshot.steps_known import StepsKnown, StepsTold, completed_by_all
from ..version import __version__
from .decomposition import OURS, PARTS, Decomposition

WORTH_BYTES = 128 << 20  # of rows: fewer are fetched sooner than the hosts start DuckDB
_PATIENCE_S, _SLOWEST = 60.0, 16e6  # for a part, and the bytes of rows of a host that are read in a further second
_WANTED_S = 1.0  # how often they are told that somebody waits
_TYPES = re.compile(r"U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|DOUBLE|FLOAT|VARCHAR|BOOLEAN|DATE|TIMESTAMP|DECIMAL\(.*\)")

Group = tuple[AgentLink, list[AgentRank]]


class _Answer(NamedTuple):
    """steps: of each rank, in words of the wire; data: an Arrow stream."""

    steps: Sequence[Mapping[str, Any]]
    data: bytes
    fetch: HostFetch


class Hosts:
    """steps: of each rank, once they have answered a query."""

    def __init__(self, client: Client, job: Snapshot, account: FetchAccount, worth_bytes: int | None = None) -> None:
        self._client, self._job, self._account = client, job, account
        self._worth_bytes = WORTH_BYTES if worth_bytes is None else worth_bytes
        self._patience_s = _PATIENCE_S
        self.steps: Mapping[Rank, StepsKnown] = {}

    def answer(self, connection: duckdb.DuckDBPyConnection, plain: str, query: Decomposition) -> Any:
        """The result of the plain query as a pyarrow Table; None if the rows have to be fetched.

        Raises duckdb.Error for what is wrong with the query.
        """
        groups = self._groups(query)
        if len(groups) < 2:
            return None
        wanted = connection.sql(plain)  # not executed
        try:
            partial = connection.sql(query.partial)
        except duckdb.Error:  # there is an average of times, and no sum
            return None
        kinds = [str(kind) for kind in partial.types]
        if any(name.lower().startswith(OURS) for name in wanted.columns):
            return None
        merging = query.merged(wanted.columns)
        merged = _over(connection, partial.columns, kinds, merging, _nothing(partial.columns))
        if not all(map(_TYPES.fullmatch, kinds)) or merged.types != wanted.types:
            return None
        began = time.monotonic()
        try:
            parts = self._parts(groups, query.partial, partial.columns)
        finally:
            self._account.seconds += time.monotonic() - began
        if parts is None:
            return None
        return _over(connection, partial.columns, kinds, merging, parts).to_arrow_table()

    def _groups(self, query: Decomposition) -> list[Group]:
        """The ranks of each server, with a link to the server itself; none unless every rank has one, and where calls
        are steps, which each process numbers by itself."""
        found: dict[ServerSocket, list[AgentRank]] = {}
        size = 0
        for rank in self._job.ranks:
            if rank.facts.step_ends == CALL:
                return []
            if not isinstance(rank, AgentRank) or not rank.link.is_served or rank.link.route is None:
                return []
            carrier = rank.link.route.carrier
            if not isinstance(carrier, ServerSocket) or rank.link.role != wire.CONTROL:
                return []
            found.setdefault(carrier, []).append(rank)
            size += sum(stored_bytes(rank, stream) for stream in query.table.streams)
        if size < self._worth_bytes:
            return []
        self._patience_s = _PATIENCE_S + size / len(found) / _SLOWEST
        return [(self._client.link(Address(each.url), each), ranks) for each, ranks in found.items()]

    def _parts(self, groups: Sequence[Group], sql: str, columns: Sequence[str]) -> Any:
        """What all hosts have answered, as one table; None if one has not, or not so."""
        told = self._ask(groups, sql=None, completed=None)
        if told is None:
            return None
        steps: dict[Rank, StepsKnown] = {}
        for (_, ranks), answer in zip(groups, told, strict=True):
            try:
                steps |= dict(zip(ranks, map(StepsTold.parse, answer.steps), strict=True))
            except ValueError:  # of another number of ranks
                return None
        parts = self._ask(groups, sql=sql, completed=completed_by_all(steps.values()))
        tables = [_table(each.data, columns) for each in parts or ()]
        if parts is None or any(table is None for table in tables):
            return None
        self.steps = steps
        self._account.hosts += [each.fetch for each in parts]
        return pa.concat_tables(tables)

    def _ask(self, groups: Sequence[Group], **fields: Any) -> list[_Answer] | None:
        """What each host answers to a request; None as soon as one declines."""
        began, most = time.monotonic(), self._account.max_bytes
        said = {"protocol": wire.PROTOCOL, "version": __version__, "engine": duckdb.__version__, "credit": wire.CREDIT}
        said |= {"most": (wire.MAX_PART_BYTES if most is None else most) // len(groups), **fields}
        calls: dict[Call, Group] = {}
        for link, ranks in groups:
            ids = [rank.facts.id for rank in ranks]
            pins = [pin(rank) for rank in ranks]
            call = self._client.send(
                link, wire.PART, ids=ids, ranks=pins, open_steps=self._job.open_steps, **said
            )  # fmt: skip
            calls[call] = link, ranks
        data: dict[Call, list[bytes]] = {call: [] for call in calls}
        ended: dict[Call, float] = {}

        def take(call: Call, header: Header, payload: Sequence[Any]) -> None:
            data[call].append(bytes(payload[0]))
            ended[call] = time.monotonic()

        self._wait(list(calls), take)
        if any(call.answer is None for call in calls):
            self._account.declined += self._why(calls)
            return None
        answers = []
        for call, (_, ranks) in calls.items():
            size, took = sum(map(len, data[call])), ended.get(call, time.monotonic()) - began
            if call.result()["bytes"] != size:
                return None
            fetch = HostFetch(ranks[0].host, tuple(rank.rank for rank in ranks), size, took * 1e3)
            answers.append(_Answer(call.result()["steps"], b"".join(data[call]), fetch))
        return answers

    def _why(self, calls: Mapping[Call, Group]) -> list[str]:
        """Why not all have answered: where one declined, the others were not waited for."""
        declined = {ranks[0].host: f": {call.error.message}" for call, (_, ranks) in calls.items() if call.error}
        late = f" within {self._patience_s:.0f} s"
        why = declined or {ranks[0].host: late for call, (_, ranks) in calls.items() if call.answer is None}
        return [f"{host or 'a host'} did not answer for its own ranks{each}" for host, each in why.items()]

    def _wait(self, calls: Sequence[Call], take: Callable[[Call, Header, Sequence[Any]], None]) -> None:
        """Until all are over, or one has declined.  Raises Interrupted."""
        end = time.monotonic() + self._patience_s
        try:
            while late := self._client.wait(
                calls, time.monotonic() + _WANTED_S, take, lambda: any(call.error is not None for call in calls)
            ):
                if any(call.error is not None for call in calls) or time.monotonic() > end:
                    return
                for call in late:
                    self._client.want(call, 0)
        finally:  # after Ctrl-C too
            self._client.cancel(call for call in calls if not call.over)
            self._client.forget(calls)


def _table(data: bytes, columns: Sequence[str]) -> Any:
    """What a host has sent; None for anything else than these columns."""
    try:
        table = pa.ipc.open_stream(data).read_all()
        table.validate(full=True)  # the host may be another's
    except (pa.ArrowException, OSError, ValueError):
        return None
    return table if table.column_names == list(columns) else None


def _nothing(columns: Sequence[str]) -> Any:
    return pa.table({name: pa.nulls(0) for name in columns})


def _over(
    connection: duckdb.DuckDBPyConnection, columns: Sequence[str], kinds: Sequence[str], merging: str, parts: Any
) -> Any:
    """The merging query over these parts, not executed yet.  Arrow has no HUGEINT: types are given back."""
    given = ", ".join(f'CAST("{name}" AS {kind}) AS "{name}"' for name, kind in zip(columns, kinds, strict=True))
    return connection.from_arrow(parts).project(given).query(PARTS, merging)
