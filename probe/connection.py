"""A connection to a job: query, eval, detach.  What probe.connect() returns; the command line is its user.

Invariant: no call outlives its time-out, and who did not answer is named in `notes`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from . import protocol as wire
from .client.client import AgentLink, Call, Client, nobody
from .client.endpoints import Resolved, resolve
from .client.handshake import greet, whoami
from .client.preflight import look
from .errors import AgentError, EvalError, SilentError, UsageError
from .host import agent_memory
from .host.file_limits import make_room
from .query.interruptible import interruptibly
from .settings import checked_settings
from .snapshot.align import SETTLE_S, align, is_settled, may_change

if TYPE_CHECKING:
    from .diagnose.report import Report
    from .diagnose.stragglers import Stragglers
    from .evals.evaluation import EvalResult, OnOutput
    from .query.database import Database
    from .query.duckdb_session import DuckDBSession
    from .query.result import Coverage, Result
    from .snapshot.stacks import Thread
    from .snapshot.wire_source import WireSource

MAX_FETCH = 1e9  # bytes
_LAST_ACT_S = 1.0
_DETACH_S = 15.0  # the target takes kernels out at a boundary; without one it says so in time


@dataclass(frozen=True)
class Unreached:
    """A rank that a request did not reach, and why.  host: "" for this machine, which the pid then belongs to.

    Example: `[each.rank for each in job.unreached]`
    """

    rank: int
    pid: int
    host: str
    why: str


class Connection:
    """Agents of one endpoint, as probe.connect gives them.  Use as a context manager, from one thread at a time.

    Example: `with probe.connect("4242") as job: print(job.query("SELECT * FROM probe.agents").to_pandas())`

    notes: what the user should know about the last call other than query(), whose Result has its own.  unreached: the
    ranks that the last stacks(), set() or detach() did not come to.
    """

    def __init__(self, resolved: Resolved, timeout: float = 10.0, key: str | None = None) -> None:
        self.endpoint = resolved.endpoint
        self.timeout = timeout
        self.notes: list[str] = []
        self.unreached: list[Unreached] = []
        make_room(len(resolved.addresses))
        self._client = Client(key)
        self.fetcher: WireSource | None = None  # what queries have read so far, and what they keep of it
        self._opening: DuckDBSession | None = None
        self.database: Database | None = None
        self._unaligned: list[AgentLink] = []
        self._closed = False
        try:
            for address in resolved.addresses:
                self._client.connect(look(address, timeout))
            greet(self._client, self.timeout)
            self._align()
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
    def agents(self) -> list[dict[str, Any]]:
        """The facts of every agent that answers, by rank; pid as this machine sees it, if it is on it."""
        return [{**link.facts, "pid": link.pid} for link in self._answering()]

    def _answering(self) -> list[AgentLink]:
        return sorted((link for link in self._client.links if not link.silent), key=lambda link: link.rank)

    def _begin(self) -> None:
        if self._closed:
            raise UsageError("This connection is closed.", f'Make another one: probe.connect("{self.endpoint}")')
        self.notes = []
        self._client.interrupted = False

    def _align(self) -> None:
        self._unaligned = align(self._client, self.timeout)

    def query(
        self, sql: str, *, open_steps: bool = False, min_ranks: int = 1, max_fetch: float | None = MAX_FETCH
    ) -> Result:
        """The result of this SQL over all ranks.  open_steps: include the step that is still in progress.

        max_fetch: the most bytes that may travel for it.  Raises QueryError, and SilentError where fewer than min_ranks
        would be in the result.  Cost: each rank sends the new rows of the streams that the tables need; it does not
        pause the job.

        Example: `job.query("SELECT step, duration FROM python.step_trace").to_pylist()`
        """
        self._begin()  # before the imports: Ctrl-C may come in their midst
        begun = time.monotonic()
        from .query.duckdb_session import DuckDBSession

        self._opening = self._opening or DuckDBSession()
        from .query.database import Database
        from .query.notes import notes_of
        from .query.result import Cost, Coverage, Result
        from .snapshot.wire_source import WireSource
        from .tables import TABLES

        self.database = database = self.database or Database(TABLES, self._opening)
        if self._settle() or self._unaligned:
            self._align()
        self.fetcher = self.fetcher or WireSource(self._client, self.timeout)
        scans = self.fetcher.scans
        scans.begin(max_fetch)
        job = self.fetcher.snapshot(open_steps)
        self._enough(Coverage.of(job, time.monotonic() - begun), min_ranks)
        table = interruptibly(partial(database.run, sql, job), database.interrupt, lambda: self._client.interrupted)
        seconds = time.monotonic() - begun
        coverage = Coverage.of(job, seconds)
        self._enough(coverage, min_ranks)
        notes = notes_of(job, coverage, database.scanned, self.endpoint)
        return Result(table, coverage, notes, Cost.of(scans.account, scans.seconds, database.seconds, seconds))

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
        """Run Python inside: at the same step on all ranks (or these), between two iterations; or at once (now).

        A snippet that raises gives a result that is not ok.  on_output(ranks, "stdout" | "stderr", text) gets
        output as it comes.  Raises EvalError, SilentError, AgentError, Interrupted.  Cost: the job stands still while
        the snippet runs, and for the ranks to meet at the step; nothing else.

        Example: `job.eval("optimizer.param_groups[0]['lr'] = 1e-4")[0].ok`
        """
        self._begin()
        from .evals.evaluation import Snippet, evaluate

        links = self._chosen(ranks)
        self._must_control("eval")
        if not now:
            self._settle()
        together = not now and len(links) > 1 and any(link.facts.get("distributed") for link in links)
        if together:
            self._same_steps(links)
        here = [link.rank for link in links]
        everyone = set(here) >= set(range(max(int(link.facts.get("world_size") or 1) for link in links)))
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

    def _same_steps(self, links: Sequence[AgentLink]) -> None:
        """Ranks whose steps are not known to be the same cannot run anything at the same one."""
        end = time.monotonic() + self.timeout
        while True:
            self._refresh()
            self._align()
            unknown = [link for link in links if may_change(link)]
            lost = unknown or [link for link in links if link in self._unaligned]
            if not lost:
                return
            if time.monotonic() > end:
                ranks = ", ".join(str(link.rank) for link in lost)
                why = f"The steps of rank {ranks} cannot be matched to those of the others."
                why = f"No step since the attach on rank {ranks}." if unknown else why
                raise EvalError(why, "Run it with --now.", "no-step")
            time.sleep(0.02)

    def _settle(self) -> bool:
        """Wait until numbers are final: a trainer's or scheduler's takes some steps to be believed.

        Whether anything may have changed.
        """
        asked, end = False, time.monotonic() + min(self.timeout, SETTLE_S)
        while any(map(may_change, self._answering())):
            self._refresh()
            asked = True
            if all(map(is_settled, self._answering())) or time.monotonic() > end:
                break
            time.sleep(0.05)
        return asked

    def _refresh(self) -> None:
        for call in self._client.ask(
            wire.HELLO, time.monotonic() + self.timeout, self._answering(), protocol=wire.PROTOCOL
        ):
            if call.answer is not None:
                call.link.facts = call.answer["facts"]

    def stacks(self) -> dict[int, list[Thread]]:
        """The Python stacks of all threads of each rank that answers, the main thread first; see unreached.

        Raises Interrupted.  Cost: some milliseconds of the GIL of each rank.

        Example: `print(*job.stacks()[0][0].frames, sep="\\n")`
        """
        self._begin()
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
        from .diagnose.hang import judge
        from .diagnose.looks import gather

        report = judge(gather(self._client, self.endpoint, min(self.timeout, 1.0), look_s))
        self._client.forgive()
        return report

    def stragglers(self, steps: int = 100) -> Stragglers:
        """Which ranks the others wait for, over the last steps, and what they spend the time on.

        Raises UsageError if there is only one rank, SilentError if too few steps are known.  Cost: some queries.

        Example: `[each.late.rank for each in job.stragglers(30).late]`
        """
        self._begin()
        from .diagnose.stragglers import stragglers

        return stragglers(self, steps)

    def set(self, **settings: Any) -> list[dict[str, Any]]:
        """Change how steps are sampled on every rank; returns the settings of each rank that answers.

        sample: "auto", or N to record 10 of every 10 * N steps (1: all); budget_pct: the overhead that auto may cause;
        backward: whether backward is recorded too.  Without arguments: the current settings.  Raises UsageError,
        AgentError, SilentError.  Cost: one request; sample=1 costs what docs/benchmarks.md says of it.

        Example: `job.set(sample=1)`
        """
        self._begin()
        checked = checked_settings(settings)
        self._must_control("set")
        calls = self._client.ask(wire.SET, time.monotonic() + self.timeout, settings=checked)
        answered = [call for call in calls if call.answer is not None]
        if not answered:
            raise nobody(calls)
        self._reached(calls)
        self.notes += [each.why for each in self.unreached]
        return [{"rank": call.link.rank, **(call.answer or {})["settings"]} for call in answered]

    def detach(self) -> list[str]:
        """Take every agent out and wait for its end; returns what had to stay, in lines that name the rank.

        Raises AgentError if the key may only read, Interrupted.  Cost: one boundary, at which the taps are
        removed.

        Example: `assert not job.detach()`
        """
        self._begin()
        self._must_control("detach")
        calls = self._client.ask(wire.DETACH, time.monotonic() + max(self.timeout, _DETACH_S))
        self._reached(calls)
        _wait_for_the_end(call.link for call in calls if call.answer is not None)
        return [f"rank {call.link.rank}: {line}" for call in calls for line in (call.answer or {"left": []})["left"]]

    def _must_control(self, what: str) -> None:
        """The agents refuse it too; so it is said in words of what was asked, and before any of them has begun."""
        barred = next((link for link in self._client.links if link.role != wire.CONTROL), None)
        if barred is not None:
            hint = "That takes the whole key, as probe key create made it."
            raise AgentError(f"{barred.name}: this key may read, not control: no {what}.", hint, "read-only")

    def _reached(self, calls: list[Call]) -> None:
        """Of those that gave no answer, why: they were silent from the beginning, or have become so."""
        why = {link: f"{link.name} {link.silent}" for link in self._client.links if link.silent}
        why |= {call.link: str(call.error).rstrip(".") for call in calls if call.answer is None}
        self.unreached = [Unreached(link.rank, link.pid, link.host, told) for link, told in why.items()]

    def cancel(self) -> None:
        """End the running call with Interrupted.  From a signal handler or any thread.  Raises nothing.  Cost: none.

        Example: `threading.Timer(60, job.cancel).start()`
        """
        self._client.interrupt()

    def close(self) -> None:
        """Give up the connection; the agents stay.  Leaving a `with` block does it.  Raises nothing.  Cost: none.

        Example: `job.close()`
        """
        self._closed = True
        if self._opening is not None:
            self._opening.close()
            self._opening = self.database = None
        self._client.close()


def _wait_for_the_end(links: Iterable[AgentLink]) -> None:
    """Of agents that have said that they go: their last act is to give their memory back."""
    end = time.monotonic() + _LAST_ACT_S
    for link in links:
        while link.here and agent_memory.descriptors(link.pid) and time.monotonic() < end:
            time.sleep(0.001)


def connect(endpoint: str | None = None, *, timeout: float = 10.0, key: str | None = None) -> Connection:
    """A connection to the agents of an endpoint; without one, to the only attached job of this machine.

    key: the file for agents at a port (tcp://, job://); without one, what PROBE_KEY names.  Raises EndpointError,
    SilentError, AgentError.  Cost: some milliseconds, and one request to each rank.

    Example: `with probe.connect("4242") as job: print(job.agents)`
    """
    return Connection(resolve(endpoint), timeout, key)
