"""A connection to a job: query, eval, detach.  Returned by probe.connect(), used by the command line.

Invariant: no call outlives its time-out, and `notes` names the ranks that did not answer.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pkgutil import resolve_name
from types import TracebackType
from typing import TYPE_CHECKING, Any

from . import protocol as wire
from .client.client import AgentLink, Call, Client, nobody
from .client.endpoints import Resolved, resolve
from .client.handshake import greet, whoami
from .client.preflight import look
from .errors import AgentError, SilentError, UsageError
from .host import agent_memory
from .host.facts import Facts
from .host.file_limits import make_room
from .query.interruptible import interruptibly
from .settings import checked_settings
from .snapshot.align import Alignment

if TYPE_CHECKING:
    from .diagnose.report import Report
    from .diagnose.stragglers import Stragglers
    from .evals.evaluation import EvalResult, OnOutput
    from .query.database import Database
    from .query.duckdb_session import DuckDBSession
    from .query.result import Coverage, Result
    from .snapshot.scans import FetchAccount
    from .snapshot.snapshot import Snapshot
    from .snapshot.source import Source
    from .snapshot.stacks import Thread
    from .snapshot.wire_source import WireSource

MAX_FETCH = 1e9  # bytes
SOURCES: dict[str, str] = {
    # recorded ranks: Address.source -> module:class, imported when it is needed and made with Address.url
}
_MEMORY_FREED_S = 1.0
_DETACH_S = 15.0  # the target removes kernels at a boundary; if none comes, it says so by then


@dataclass(frozen=True)
class Unreached:
    """A rank that a request did not reach, and why.  host: "" for this machine, on which pid is then valid.

    Example: `[each.rank for each in job.unreached]`
    """

    rank: int
    pid: int
    host: str
    why: str


class Connection:
    """The ranks of one endpoint, from probe.connect.  Use it as a context manager, from one thread at a time.

    Example: `with probe.connect("4242") as job: print(job.query("SELECT * FROM probe.agents").to_pandas())`

    notes: what the user should know about the last call, except query(), whose Result has its own; unreached: the ranks
    that the last stacks(), set() or detach() did not reach.
    """

    def __init__(self, resolved: Resolved, timeout: float = 10.0, key: str | None = None) -> None:
        self.endpoint = resolved.endpoint
        self.timeout = timeout
        self.notes: list[str] = []
        self.unreached: list[Unreached] = []
        make_room(len(resolved.addresses))
        self._client = Client(key)
        self._agents_source: WireSource | None = None
        self._recorded: list[Source] = []
        self._opening: DuckDBSession | None = None
        self.database: Database | None = None
        self._alignment = Alignment(self._client, timeout)
        self._closed = False
        try:
            for address in resolved.addresses:
                if address.source:
                    self._recorded.append(resolve_name(SOURCES[address.source])(address.url))
                else:
                    self._client.connect(look(address, timeout))
            if self._client.links:
                greet(self._client, self.timeout)
                self._alignment.align()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def agents(self) -> list[Facts]:
        """The facts of all agents that answer and of recorded ranks, by rank; pid as this machine sees it, if it is
        here."""
        found = [replace(link.facts, pid=link.pid) for link in self._client.links if not link.silent]
        if self._recorded:
            from .snapshot.source import Rank

            found += [one.facts for source in self._recorded for one in source.ranks() if isinstance(one, Rank)]
        return sorted(found, key=lambda facts: facts.rank or 0)

    def _begin(self) -> None:
        if self._closed:
            raise UsageError("This connection is closed.", f'Open a new one: probe.connect("{self.endpoint}")')
        self.notes = []
        self._client.interrupted = False

    def query(
        self, sql: str, *, open_steps: bool = False, min_ranks: int = 1, max_fetch: float | None = MAX_FETCH
    ) -> Result:
        """The result of this SQL over all ranks.  open_steps: include the step that is still in progress.

        max_fetch: the most bytes to fetch.  Raises QueryError, and SilentError if fewer than min_ranks ranks answer.
        Cost: each rank sends the new rows of the streams that the tables need; it does not pause the job.

        Example: `job.query("SELECT step, duration FROM python.step_trace").to_pylist()`
        """
        self._begin()  # before the imports: Ctrl-C may come in their midst
        begun = time.monotonic()
        from .query.duckdb_session import DuckDBSession

        self._opening = self._opening or DuckDBSession()
        from .query.database import Database
        from .query.notes import notes_of
        from .query.result import Cost, Coverage, Result
        from .tables import TABLES

        self.database = database = self.database or Database(TABLES, self._opening)
        job = self._snapshot(open_steps, max_fetch)
        self._enough(Coverage.of(job, time.monotonic() - begun), min_ranks)
        table = interruptibly(partial(database.run, sql, job), database.interrupt, lambda: self._client.interrupted)
        seconds = time.monotonic() - begun
        coverage = Coverage.of(job, seconds)
        self._enough(coverage, min_ranks)
        notes = notes_of(job, coverage, database.scanned, self.endpoint)
        cost = Cost.of(self.account.scans, self.account.seconds, database.seconds, seconds)
        return Result(table, coverage, notes, cost)

    def snapshot(self, *, open_steps: bool = False, max_fetch: float | None = MAX_FETCH) -> Snapshot:
        """All ranks at this moment; their rows are fetched when they are read, max_fetch bytes at most.

        Raises SilentError if no rank answers; reading raises QueryError past max_fetch.  Cost: one request to each
        rank, then as query().

        Example: `job.snapshot().ranks[0].rows("steps")["time_ns"]`
        """
        self._begin()
        return self._snapshot(open_steps, max_fetch)

    def _snapshot(self, open_steps: bool, max_fetch: float | None) -> Snapshot:
        from .snapshot.snapshot import Snapshot
        from .snapshot.wire_source import WireSource

        self._alignment.update()
        if self._client.links and self._agents_source is None:
            self._agents_source = WireSource(self._client, self.timeout, self.account)
        self.account.begin(max_fetch)
        agents = [] if self._agents_source is None else [self._agents_source]
        return Snapshot([*agents, *self._recorded], open_steps)

    @cached_property
    def account(self) -> FetchAccount:
        """What the last query or snapshot has fetched from which rank."""
        from .snapshot.scans import FetchAccount

        return FetchAccount()

    def _enough(self, coverage: Coverage, min_ranks: int) -> None:
        if coverage.seen < min_ranks:
            raise SilentError(f"Fewer than {min_ranks} ranks: {coverage}.", f"Why: probe {self.endpoint} hang")

    def eval(
        self,
        code: str,
        *,
        ranks: Sequence[int] | None = None,
        now: bool = False,
        timeout: float | None = None,
        write: bool = True,
        filename: str = "<eval>",
        on_output: OnOutput | None = None,
    ) -> EvalResult:
        """Run Python in the job: at the same step on all ranks (or these), between two iterations; or at once (now).

        A snippet that raises gives a result that is not ok.  on_output(ranks, "stdout" | "stderr", text) receives
        output as it comes.  Raises EvalError, SilentError, AgentError, Interrupted.  Cost: the job stands still while
        the snippet runs, and until the ranks meet at the step; nothing else.

        Example: `job.eval("optimizer.param_groups[0]['lr'] = 1e-4")[0].ok`
        """
        self._begin()
        from .evals.evaluation import Snippet, evaluate

        self._must_reach_agents("eval")
        links = self._chosen(ranks)
        self._must_control("eval")
        if not now:
            self._alignment.settle()
        together = not now and len(links) > 1 and any(link.facts.distributed for link in links)
        if together:
            self._alignment.same_steps(links)
        here = [link.rank for link in links]
        everyone = set(here) >= set(range(max(link.facts.world_size or 1 for link in links)))
        asked = None if ranks is None and everyone else here  # an endpoint may be one rank of several
        snippet = Snippet(code, filename, now, timeout, write, whoami(), asked)
        results = evaluate(self._client, links, snippet, together, self.timeout, on_output)
        self.notes += [
            f"rank {result.rank}: {result.dropped_bytes} bytes of output were dropped"
            for result in results
            if result.dropped_bytes
        ]
        return results

    def _chosen(self, ranks: Iterable[int] | None) -> list[AgentLink]:
        links = sorted(self._client.links, key=lambda link: link.rank)
        if ranks is not None:
            wanted = set(ranks)
            absent = wanted - {link.rank for link in links}
            if absent:
                there = ", ".join(str(link.rank) for link in links)
                raise UsageError(f"There is no rank {', '.join(map(str, sorted(absent)))}.", f"Ranks: {there}")
            links = [link for link in links if link.rank in wanted]
        silent = [link for link in links if link.silent]
        if silent:
            raise SilentError(f"{silent[0].name} {silent[0].silent}: nothing was run.")
        return links

    def stacks(self) -> dict[int, list[Thread]]:
        """Rank -> the Python stacks of all its threads, the main thread first; see unreached for silent ranks.

        Raises Interrupted.  Cost: some milliseconds of the GIL of each rank.

        Example: `print(*job.stacks()[0][0].frames, sep="\\n")`
        """
        self._begin()
        self._must_reach_agents("stacks")
        from .snapshot.stacks import threads_of

        calls = self._client.ask(wire.STACKS, time.monotonic() + self.timeout)
        self._reached(calls)
        return {call.link.rank: threads_of(call.answer["threads"]) for call in calls if call.answer is not None}

    def hang(self, look_s: float = 1.0) -> Report:
        """Why the job is stuck, or that it is not, from two looks at every rank, look_s seconds apart.

        Raises Interrupted.  Cost: 3 s at most; in a job that records no rows, some 40 ms of the GIL of each rank.

        Example: `print(job.hang().verdict)`
        """
        self._begin()
        self._must_reach_agents("hang")
        from .diagnose.hang import judge
        from .diagnose.looks import gather

        report = judge(gather(self._client, self.endpoint, min(self.timeout, 1.0), look_s))
        self._client.forgive()
        return report

    def stragglers(self, steps: int = 100) -> Stragglers:
        """Which ranks the others wait for, over the last steps, and what these spend the time on.

        Raises UsageError if there is only one rank, SilentError if too few steps are known.  Cost: some queries.

        Example: `[each.late.rank for each in job.stragglers(30).late]`
        """
        self._begin()
        from .diagnose.stragglers import stragglers

        return stragglers(self, steps)

    def set(self, **settings: Any) -> list[dict[str, Any]]:
        """Change how every rank samples steps; the settings of each rank that answers, with its rank.

        sample: "auto", or N to record every N-th block of ten steps (1: all); budget_pct: the overhead that auto may
        cause; backward: whether backward is recorded too.  Without arguments nothing changes.  Raises UsageError,
        AgentError, SilentError.  Cost: one request; docs/benchmarks.md says what sample=1 costs.

        Example: `job.set(sample=1)`
        """
        self._begin()
        checked = checked_settings(settings)
        self._must_control("set")
        calls = self._client.ask(wire.SET, time.monotonic() + self.timeout, settings=checked)
        answered = [call for call in calls if call.answer is not None]
        if not answered:
            raise nobody([call.error for call in calls])
        self._reached(calls)
        self.notes += [each.why for each in self.unreached]
        return [{"rank": call.link.rank, **(call.answer or {})["settings"]} for call in answered]

    def detach(self) -> list[str]:
        """Remove every agent and wait for its end; lines that say what had to stay in which rank.

        Raises AgentError if the key may only read, Interrupted.  Cost: one boundary, at which the taps are removed.

        Example: `assert not job.detach()`
        """
        self._begin()
        self._must_control("detach")
        calls = self._client.ask(wire.DETACH, time.monotonic() + max(self.timeout, _DETACH_S))
        self._reached(calls)
        _wait_for_the_end(call.link for call in calls if call.answer is not None)
        return [f"rank {call.link.rank}: {line}" for call in calls for line in (call.answer or {"left": []})["left"]]

    def _must_reach_agents(self, what: str) -> None:
        """Raises UsageError if there are only recorded ranks."""
        if not self._client.links:
            hint = f'It can be queried: probe {self.endpoint} query "SELECT …"'
            raise UsageError(f"{self.endpoint} is a recording, without agents: no {what}.", hint)

    def _must_control(self, what: str) -> None:
        """Raises AgentError if the key may only read.  Agents refuse too; this names the call, before any has begun."""
        self._must_reach_agents(what)
        barred = next((link for link in self._client.links if link.role != wire.CONTROL), None)
        if barred is not None:
            hint = "That takes the whole key, as probe key create made it."
            raise AgentError(f"{barred.name}: this key may read, not control: no {what}.", hint, "read-only")

    def _reached(self, calls: list[Call]) -> None:
        """Set unreached: the ranks that were silent before, and those that gave no answer now."""
        why = {link: f"{link.name} {link.silent}" for link in self._client.links if link.silent}
        why |= {call.link: str(call.error).rstrip(".") for call in calls if call.answer is None}
        self.unreached = [Unreached(link.rank, link.pid, link.host, told) for link, told in why.items()]

    def cancel(self) -> None:
        """End the running call with Interrupted.  From a signal handler or any thread.  Raises nothing.  Cost: none.

        Example: `threading.Timer(60, job.cancel).start()`
        """
        self._client.interrupt()

    def close(self) -> None:
        """Close the connection; the agents stay.  Leaving a `with` block does it.  Raises nothing.  Cost: none.

        Example: `job.close()`
        """
        self._closed = True
        if self._opening is not None:
            self._opening.close()
            self._opening = self.database = None
        self._client.close()


def _wait_for_the_end(links: Iterable[AgentLink]) -> None:
    """Agents that have confirmed the detach free their memory last."""
    end = time.monotonic() + _MEMORY_FREED_S
    for link in links:
        while link.here and agent_memory.descriptors(link.pid) and time.monotonic() < end:
            time.sleep(0.001)


def connect(endpoint: str | None = None, *, timeout: float = 10.0, key: str | None = None) -> Connection:
    """A connection to the ranks of an endpoint; without one, to the only attached job on this machine.

    key: the key file for agents at a port (tcp://, job://); by default the one that PROBE_KEY names.

    Raises EndpointError, SilentError, AgentError.  Cost: some milliseconds, and one request to each rank.

    Example: `with probe.connect("4242") as job: print(job.agents)`
    """
    return Connection(resolve(endpoint), timeout, key)
