"""A connection to a job.  Returned by probe.connect(), used by the command line; control.py has what changes the job,
insight.py what says why it is stuck or slow.

Invariant: no call outlives its time-out, and its result, `notes` or `unreached` name the ranks that did not answer.
"""

from __future__ import annotations

import atexit
import time
from collections.abc import Callable
from pkgutil import resolve_name
from typing import TYPE_CHECKING
from weakref import WeakSet

from . import protocol as wire
from .client import agent_requests
from .client.client import Client
from .client.endpoints import Resolved, resolve
from .client.handshake import all_answer, open_links
from .errors import Interrupted, UsageError
from .host.facts import Facts
from .host.file_limits import make_room
from .insight import Insight
from .snapshot.align import Alignment

if TYPE_CHECKING:
    from .memory.rank_memory import RankMemory
    from .query.database import Database
    from .query.result import Result
    from .snapshot.snapshot import Snapshot
    from .snapshot.source import Source
    from .snapshot.stacks import Thread
    from .snapshot.wire_source import WireSource

MAX_FETCH = 1e9  # bytes
_open: WeakSet[Connection] = WeakSet()


@atexit.register
def _close_all() -> None:
    """DuckDB prints a page of leaks if its connections outlive the interpreter."""
    for each in [*_open]:
        each.close()


class Connection(Insight):
    """The ranks of one endpoint, from probe.connect.  Use it as a context manager, from one thread at a time.

    Example: `with probe.connect("4242") as job: print(job.query("SELECT * FROM probe.agents").to_pylist())`

    notes: what the user should know about the last call (a query's Result has its own); unreached: the ranks that the
    last call did not reach, where it asks each of them; skipped: a line about each process left out, for it only
    looks as if it had an agent; is_unwanted: asked before each call; True ends it with Interrupted, as cancel() does.
    """

    def __init__(self, at: Resolved, timeout: float = 10.0, key: str | None = None, role: str = wire.CONTROL) -> None:
        self.endpoint, self.timeout, self.skipped, self._closed = at.endpoint, timeout, at.skipped, False
        self.notes: list[str] = []
        self.unreached: list[agent_requests.Unreached] = []
        make_room(len(at.addresses))
        self._client = Client(key, role)
        self._wire_source: WireSource | None = None
        self.database: Database | None = None
        self._alignment = Alignment(self._client, timeout)
        self.is_unwanted: Callable[[], bool] = lambda: False
        _open.add(self)
        try:
            self._recorded: list[Source] = at.recorded()
            open_links(self._client, at.addresses, timeout)
            self._alignment.align()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def agents(self) -> list[Facts]:
        """The facts of all agents that answer and of recorded ranks, by rank; pid as this machine sees it, if here."""
        answering = [link.facts._replace(pid=link.pid) for link in self._client.links if not link.silent]
        recorded = [facts for source in self._recorded for facts in source.facts()]
        return sorted([*answering, *recorded], key=lambda facts: facts.rank or 0)

    def _begin(self, what: str = "", control: bool = False) -> None:
        """Begin a call.  what: it needs agents, and if `control` a key that may control them."""
        if self._closed:
            raise UsageError("This connection is closed.", f'Open a new one: probe.connect("{self.endpoint}")')
        self.notes, self._client.interrupted = [], False
        if self.is_unwanted():  # asked after the line above, or a signal in between would be forgotten
            raise Interrupted("Interrupted.")
        if what:
            agent_requests.require_agents(self._client.links, self.endpoint, what, control)

    def query(
        self, sql: str, *, open_steps: bool = False, min_ranks: int = 1, max_fetch: float | None = MAX_FETCH
    ) -> Result:
        """The result of this SQL over all ranks.  open_steps: include the step that is still in progress.

        max_fetch: the most bytes to fetch.  Raises QueryError, and SilentError without the rows of min_ranks ranks.
        Cost: each rank sends the new rows of the streams that the tables need; it does not pause the job.

        Example: `job.query("SELECT step, duration FROM python.step_trace").to_pylist()`
        """
        self._begin()  # before the imports: Ctrl-C may come in their midst
        begun = time.monotonic()
        database = self._database()
        job = self._snapshot(open_steps, max_fetch if self._limits_fetches else None)
        return database.answer(sql, job, self.account, self._client, self.endpoint, min_ranks, begun)

    def _database(self) -> Database:
        from .query.opening import open_database

        self.database = self.database or open_database()
        return self.database

    def require_one_job(self) -> None:
        """For SQL that would add up the rows of several jobs; only a folder of recordings may hold more than one.

        Raises UsageError, which names them.  Cost: none.

        Example: `job.require_one_job()`
        """

    def confine_queries(self, memory_bytes: int) -> None:
        """From now on query() takes one SELECT at a time, which can read the tables and nothing else: no files, no
        extensions, no settings; its intermediate results have so much memory.

        Anything else raises QueryError.  Raises nothing itself.  Cost: DuckDB's imports, and some 20 ms.

        Example: `job.confine_queries(1 << 30)`
        """
        self._database().confine(memory_bytes)

    @property
    def is_whole(self) -> bool:
        """Whether every rank has answered so far and seems to go on, so that a new connection would find no more."""
        return all_answer(self._client)

    def snapshot(self, *, open_steps: bool = False, max_fetch: float | None = MAX_FETCH) -> Snapshot:
        """All ranks at this moment; their rows are fetched when they are read, max_fetch bytes at most.

        Raises SilentError if no rank answers; reading, QueryError.  Cost: one request to each rank, then as query().

        Example: `job.snapshot().ranks[0].rows("steps")["time_ns"]`
        """
        self._begin()
        return self._snapshot(open_steps, max_fetch)

    def _snapshot(self, open_steps: bool, max_fetch: float | None) -> Snapshot:
        from .snapshot.snapshot import Snapshot
        from .snapshot.wire_source import WireSource

        self._alignment.update()
        if self._wire_source is None:
            self._wire_source = WireSource(self._client, self.timeout)
            self.account = self._wire_source.account
        self.account.begin(max_fetch)
        return Snapshot([self._wire_source, *self._recorded], open_steps)

    def stacks(self) -> dict[int, list[Thread]]:
        """Rank -> the Python stacks of all its threads, the main thread first.  unreached: ranks whose agents did not
        answer, which have their stacks all the same as a rule, or whose memory cannot be read.

        Raises Interrupted.  Cost: nothing in the job, whose memory is read, here or by a process on its host.

        Example: `print(*job.stacks()[0][0].frames, sep="\\n")`
        """
        self._begin("stacks")
        from .snapshot.live_stacks import all_stacks

        found, self.unreached = all_stacks(self._client, self.timeout)
        return found

    def memory(self, wait_s: float = 10.0) -> list[RankMemory]:
        """Who holds which tensor on each rank, and what the look before this one has found; see unreached.

        It looks at the next boundary between two steps; if none comes for so long, at once: without gradients and
        graphs.  Raises AgentError if the key may only read, SilentError, Interrupted.  Cost: some 100 ms of the
        training, once or twice.

        Example: `max(job.memory()[0].tensors, key=lambda each: each.bytes).holder`
        """
        self._begin("memory", control=True)
        from .memory.rank_memory import rank_memory

        answers, self.unreached = agent_requests.tensors(self._client, wait_s, self.timeout)
        return [rank_memory(rank, looks) for rank, looks in sorted(answers.items())]

    def cancel(self) -> None:
        """End the running call with Interrupted.  From a signal handler or any thread.  Raises nothing.  Cost: none.

        Example: `threading.Timer(60, job.cancel).start()`
        """
        self._client.interrupted = True

    def close(self) -> None:
        """Close the connection; the agents stay.  Leaving a `with` block does it.  Raises nothing.  Cost: none.

        Example: `job.close()`
        """
        self._closed = True
        if self.database is not None:
            self.database.close()
            self.database = None
        self._client.close()


def connect(endpoint: str | int | None = None, *, timeout: float = 10.0, key: str | None = None) -> Connection:
    """A connection to the ranks of an endpoint; without one, to the only attached job on this machine.

    key: the key file for agents at a port (tcp://, job://); by default the one that PROBE_KEY names.
    Raises EndpointError, UsageError, SilentError, AgentError.  Cost: some milliseconds, and one request to each rank.

    Example: `with probe.connect("4242") as job: print(job.agents)`
    """
    at = resolve(None if endpoint is None else str(endpoint))
    kinds = {each.connection for each in at.addresses} - {""}
    made: Connection = resolve_name(kinds.pop())(at, timeout, key) if kinds else Connection(at, timeout, key)
    return made
