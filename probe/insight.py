"""The calls of a connection that say why a job is stuck or slow: profile, hang, stragglers, why, and what changed.

A base of probe.connection.Connection.  Invariant: none of them changes the job for longer than it looks.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .client import agent_requests
from .client.client import Client
from .client.handshake import whoami
from .control import Control
from .settings import require_seconds

if TYPE_CHECKING:
    from .diagnose.change.report import Change
    from .diagnose.diagnosis import Diagnosis
    from .diagnose.hang.report import Report
    from .diagnose.lateness.stragglers import Stragglers
    from .diagnose.watch import Progress
    from .host.facts import Facts
    from .host.native_frames import NativeFrame
    from .profile.launch import RankProfile
    from .query.result import Result


class Insight(Control):
    """See Connection."""

    endpoint: str
    timeout: float
    notes: list[str]
    _client: Client
    _limits_fetches = True

    @property
    @abstractmethod
    def agents(self) -> list[Facts]:
        """The facts of all agents that answer."""

    @abstractmethod
    def query(self, sql: str) -> Result:
        """The result of this SQL."""

    def profile(
        self, seconds: float = 10.0, *, steps: int = 0, rate: float = 100.0, ranks: Sequence[int] | None = None
    ) -> list[RankProfile]:
        """Sample the Python stacks of all ranks (or these) for so long, or until so many whole steps are over.

        The samples are rows of python.profile from then on; see unreached for ranks that could not be profiled.
        Raises AgentError, SilentError if none could, Interrupted.  Cost: nothing in the job but their deposit, some
        0.1 ms twice a second; a process for each rank, on its host, with some 0.1 ms of a core a thread and sample.

        Example: `job.profile(5); job.query("SELECT function, SUM(seconds) FROM python.profile GROUP BY 1")`
        """
        self._begin("profile", control=True)
        from .profile.launch import Order, profile

        require_seconds("seconds", seconds)
        links, order = agent_requests.chosen(self._client.links, ranks), Order(seconds, steps, rate, whoami())
        taken, self.unreached = profile(self._client, links, order)
        return taken

    def hang(self, look_s: float = 1.0, *, native: bool = False) -> Report:
        """Why the job is stuck, or that it is not, from two looks at every rank, look_s seconds apart.

        native: if it is, also in which C or C++ function; up to four of its ranks stand for that, 0.3 to 1.5 s each.
        Raises UsageError for that without pystack, Interrupted.  Cost: 10 s at most; in a job that records no rows,
        some 40 ms of the GIL of each rank.

        Example: `print(job.hang().verdict)`
        """
        self._begin("hang")
        from .diagnose.hang.looks import gather
        from .diagnose.hang.native import require_pystack, with_native
        from .diagnose.second_witness import judged

        if native:
            require_pystack()
        evidence = gather(self._client, self.endpoint, min(self.timeout, 1.0), look_s)
        report = judged(evidence)
        return with_native(report, evidence) if native else report

    def native_stacks(self, look_s: float = 1.0) -> dict[int, list[NativeFrame]]:
        """Rank -> the C and C++ frames below Python of the thread that trains, innermost first.

        Only of ranks on this host that stand still, as two looks show, look_s seconds apart: the look would stop a rank
        that goes on; `notes` name the others.  Raises UsageError without pystack, Interrupted.  Cost: each of these
        ranks stands for 0.3 to 1.5 s, one after the other.

        Example: `{rank: frames[0].function for rank, frames in job.native_stacks().items()}`
        """
        self._begin("native stacks", control=True)
        from .diagnose.hang.looks import gather
        from .diagnose.hang.native import natives_of, require_pystack, why_not

        require_pystack()
        evidence = gather(self._client, self.endpoint, min(self.timeout, 1.0), look_s)
        found = natives_of(evidence.ranks)
        self.notes = [why_not(each) for each in evidence.ranks if each.rank not in found]
        return found

    def stragglers(self, steps: int = 100) -> Stragglers:
        """Which ranks the others wait for, over the last steps, and what these spend the time on.

        Raises UsageError if there is only one rank, SilentError if too few steps are known.  Cost: some queries.

        Example: `[each.late.rank for each in job.stragglers(30).late]`
        """
        self._begin()
        from .diagnose.lateness.stragglers import stragglers

        with self._fetching_all():
            return stragglers(self, steps)

    def why(self, seconds: float | None = None, *, progress: Progress | None = None) -> Diagnosis:
        """Why the job is slow, stuck or well: findings by cost, each with its evidence, remedy and expected gain.

        It watches the job for so long, by default for 25 s, for 10 s if one cause takes half of the step, for 40
        steps where that takes longer, and for 5 s more if that leaves something open.  First it waits for a whole step,
        for two minutes at most, or 20 s where none has ever come and no model is at work.  progress: called with
        seconds, gives a context manager that is entered while it waits and while it watches.  Raises SilentError,
        Interrupted.  Cost: that of hang(), profile() and some queries; a block of steps in a few is sampled meanwhile.

        Example: `[(each.code, each.finding.share) for each in job.why().causes]`
        """
        self._begin("why")
        from .diagnose.why import why

        if seconds is not None:
            require_seconds("seconds", seconds)
        with self._fetching_all():
            return why(self, seconds, *([progress] if progress else []))

    def since_change(self, at_step: int | None = None) -> Change:
        """What the last eval that changed something has brought, or what came with this step: step time, samples a
        second and phases before and after, each with an interval.

        Raises SilentError while too few steps are known.  Cost: some queries.

        Example: `print(*job.since_change().lines(), sep="\\n")`
        """
        self._begin()
        from .diagnose.change.change import change

        with self._fetching_all():
            return change(self, at_step)

    @contextmanager
    def _fetching_all(self) -> Iterator[None]:
        """Queries of ours ask for the steps that they need, and of many ranks these are more than a user may want."""
        self._limits_fetches = False
        try:
            yield
        finally:
            self._limits_fetches = True
