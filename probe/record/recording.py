"""A folder of recordings as an endpoint: what a Connection answers about a job, of one that is recorded.

Made by probe.connect for a folder that holds `job=…`.  Invariant: what needs a living job is refused, with a code.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

from .. import protocol as wire
from ..client.endpoints import Resolved
from ..connection import MAX_FETCH, Connection
from ..errors import SilentError, UsageError
from ..host.facts import Facts
from ..query.result import SKIPPED, Cost, Coverage, Note, Result
from ..settings import require_seconds
from ..snapshot.call_steps import CALL
from . import manifest
from .archive import Archive
from .mirror import place
from .views import Views

if TYPE_CHECKING:
    from ..diagnose.change.report import Change
    from ..diagnose.diagnosis import Diagnosis
    from ..diagnose.lateness.stragglers import Stragglers
    from ..diagnose.watch import Progress
    from ..snapshot.snapshot import Snapshot

_STEPS = 2000  # that why() judges
# When a job was started anew: its steps are counted again, from the first one or from a checkpoint.  Where calls are
# steps, each recorder numbers them; there, with an attach after other rows.
# Steps are only put in order where a number came twice (a bit of 32 stands for each: counting distinct ones would hold
# them all), or a lower one than the first by both clocks: where the wall clock alone was set back, all steps come once.
_RESTARTED = """WITH attached(rank, began) AS (VALUES (NULL, NULL::TIMESTAMP) {attached}),
again AS (
    SELECT rank FROM (
        SELECT rank, COUNT(*) - bit_count(BIT_OR(1::BIGINT << (step & 31))) AS more
        FROM python.step_trace GROUP BY rank, step >> 5)
    GROUP BY rank HAVING SUM(more) > 0
    UNION SELECT rank FROM python.step_trace GROUP BY rank
    HAVING ARG_MIN(step, time) > MIN(step) AND ARG_MIN(step, start_ns) > MIN(step)),
steps AS (
    SELECT rank, step, time, LAG(step) OVER (PARTITION BY rank ORDER BY time) AS before
    FROM python.step_trace SEMI JOIN again USING (rank) ANTI JOIN attached USING (rank)),
restarted AS (
    SELECT MAX(time) AS began FROM steps WHERE step <= before GROUP BY rank
    UNION ALL SELECT began FROM attached JOIN python.step_trace USING (rank) GROUP BY rank, began
    HAVING MIN(time) < began - INTERVAL 1 SECOND AND MAX(time) >= began)
SELECT MIN(began)::VARCHAR AS began FROM restarted
WHERE began >= (SELECT MAX(began) FROM restarted) - INTERVAL 1 MINUTE"""  # ranks start together
_LAST = f"SELECT step, time FROM python.step_trace WHERE step > {{last}} - {_STEPS}"


class Recording(Connection):
    """The jobs in one folder, or one of them.  It answers query, stragglers, why and since_change.

    Example: `with probe.connect("runs/job=exp7") as job: print(job.query("SELECT MAX(step) FROM python.step_trace"))`
    """

    def __init__(self, at: Resolved, timeout: float = 10.0, key: str | None = None, role: str = wire.CONTROL) -> None:
        if len(at.addresses) > 1:
            raise UsageError(f"A recording is an endpoint by itself: {at.endpoint}.", "Give one folder.", "recording")
        super().__init__(at._replace(addresses=[]), timeout, key, role)
        self.archive = Archive(Path(at.addresses[0].url))
        self._views: Views | None = None
        self._since = ""

    @property
    def agents(self) -> list[Facts]:
        """The facts of all recorded ranks, as they were last."""
        found = [facts for job in self.archive.jobs for facts in manifest.facts(manifest.read(job))]
        return found or [Facts(rank=rank) for rank in self.archive.ranks]

    def query(
        self, sql: str, *, open_steps: bool = False, min_ranks: int = 1, max_fetch: float | None = MAX_FETCH
    ) -> Result:
        """The result of this SQL over all files that count now; there are no open steps.

        max_fetch: the most bytes that the result may have, for nothing else is fetched.  Raises QueryError, and
        SilentError if fewer ranks are recorded.  Cost: that of DuckDB over Parquet files.
        """
        self._begin()
        begun = time.monotonic()
        left = self._take_over()
        self._views = self._views or Views(self.archive)
        table = self._views.run(sql, self._since, max_fetch, lambda: self._client.interrupted or self.is_unwanted())
        seconds = time.monotonic() - begun
        coverage = Coverage(tuple(self.archive.ranks), (), (), seconds)
        if min_ranks > 1:
            coverage.require(min_ranks, self.endpoint)
        notes = tuple(Note(SKIPPED, line) for line in [*left, *self._views.skipped])
        return Result(table, coverage, notes, Cost((), 0.0, {}, seconds))

    def _take_over(self) -> list[str]:
        """The rows that recorders left in mirrors which were killed together with their jobs."""
        if not any(place(job).exists() for job in self.archive.jobs):
            return []
        from .mirrored import take_over_what_is_left

        return take_over_what_is_left(self.archive.jobs)

    @contextmanager
    def last_run(self) -> Iterator[None]:
        """Meanwhile, of a job that was started anew, only what came after its last start is seen: its steps may have
        the numbers of steps before.  Cost: a query."""
        calling = [each for each in self.agents if each.step_ends == CALL]
        attached = "".join(f", ({each.rank or 0}, make_timestamp({each.attached_wall_ns // 1000}))" for each in calling)
        (row,) = self.query(_RESTARTED.format(attached=attached)).to_pylist()
        self._since = row["began"] or ""
        told = [f"The job was started anew: what was before {self._since} UTC does not count."] if self._since else []
        self.notes = told
        try:
            yield
        finally:
            self._since, self.notes = "", [*self.notes, *told]

    def require_one_job(self) -> None:
        if len(jobs := self.archive.jobs) != 1:
            names = ", ".join(job.name for job in jobs) or "no job"
            raise UsageError(f"{self.endpoint} holds {names}.", f"Give one: {self.endpoint}/job=NAME", "recording")

    def confine_queries(self, memory_bytes: int) -> None:
        raise self._refused("confined queries")

    def _snapshot(self, open_steps: bool, max_fetch: float | None) -> Snapshot:
        raise self._refused("raw rows")

    def _refused(self, what: str) -> UsageError:
        return UsageError(f"{self.endpoint} is a recording, without agents: no {what}.", "", "recording")

    def stragglers(self, steps: int = 100) -> Stragglers:
        """As of a living job, without what its stacks show at this moment."""
        self._begin()
        from ..diagnose.lateness.stragglers import stragglers

        self.require_one_job()
        with self.last_run():
            return stragglers(self, steps, lambda *_: "", is_live=False)

    def since_change(self, at_step: int | None = None) -> Change:
        """As of a living job."""
        self.require_one_job()
        with self.last_run():
            return super().since_change(at_step)

    def why(self, seconds: float | None = None, *, progress: Progress | None = None) -> Diagnosis:
        """Why the job was slow, stuck or well: the rules on tables over its last steps, or those of its last seconds.

        Raises SilentError with too few steps.  Cost: some queries.
        """
        self._begin()
        if seconds is not None:
            require_seconds("seconds", seconds)
        self.require_one_job()
        with self.last_run():
            return self._why(seconds)

    def _why(self, seconds: float | None) -> Diagnosis:
        from ..diagnose.recorded import stood, without_job
        from ..diagnose.watched import LEAST_STEPS, Watched
        from ..diagnose.why import judge

        said = manifest.read(self.archive.jobs[0])
        seen = stood(self, manifest.asked(said, "stands"))
        if (stuck := self._stuck(seen)) is not None:
            return stuck
        first, last, lasted = self._window(seconds)
        why_not, values = self._why_not_profiled(first, last), manifest.asked(said, "values")
        watched = Watched(self, first, last, lasted, why_not_profiled=why_not, read=values.get)
        told = judge(watched) if watched.steps else seen
        if told is not None and (told.code != "unknown" or watched.steps >= LEAST_STEPS):
            is_hung = seen is not None and seen.state == "hung"
            at_end = [replace(each, severity="hint") for each in seen.findings] if seen is not None and is_hung else []
            return without_job(replace(told, findings=[*told.findings, *at_end]))
        if seen is not None:
            return seen
        few = f"{watched.steps} steps are too few to judge; {LEAST_STEPS} are needed."
        raise SilentError(few, self._how_more(seconds, last), "few-steps")

    def _stuck(self, seen: Diagnosis | None) -> Diagnosis | None:
        """The verdict on a job that hung to the end.  seen: by a recorder, which knows the ranks of its own host."""
        from ..diagnose.recorded import hung, may_have_ended

        is_told = seen is not None and seen.state == "hung" and not may_have_ended(seen)
        of_all = None if is_told and len({each.host for each in self.agents}) == 1 else hung(self, seen)
        return of_all or (seen if is_told else None)

    def _window(self, seconds: float | None) -> tuple[int, int, float]:
        """The first and the last step to judge, and how long they took."""
        since = f"time > (SELECT MAX(time) FROM python.step_trace) - to_seconds({seconds})"
        latest = f"step > (SELECT MAX(step) FROM python.step_trace) - {_STEPS}"
        told = "SELECT MIN(step) AS first, MAX(step) AS last, epoch(MAX(time) - MIN(time)) AS seconds"
        (row,) = self.query(f"{told} FROM python.step_trace WHERE {since if seconds else latest}")
        return row["first"] or 0, row["last"] or 0, row["seconds"] or 0.0

    def _how_more(self, seconds: float | None, last: int) -> str:
        """What to do about too few steps."""
        whole = f"SELECT COUNT(DISTINCT step) AS steps, epoch(MAX(time) - MIN(time)) AS seconds FROM ({_LAST})"
        (row,) = self.query(whole.format(last=last))
        if seconds is None or (row["seconds"] or 0.0) <= seconds:
            return f"The recording has {row['steps']} in {row['seconds'] or 0.0:.0f} s. Record the job for longer."
        return f"Take more of it: probe {self.endpoint} why --seconds {ceil(row['seconds'])}"

    def _why_not_profiled(self, first: int, last: int) -> str:
        (row,) = self.query(f"SELECT COUNT(*) AS rows FROM python.profile WHERE step BETWEEN {first} AND {last}")
        return "" if row["rows"] else "no profile was taken while these steps were recorded"

    def close(self) -> None:
        """Close it.  Raises nothing."""
        super().close()
        if (views := getattr(self, "_views", None)) is not None:
            views.close()
            self._views = None
