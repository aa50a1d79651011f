"""The recorder: flushes the tables of a job into a folder every few seconds until the job ends or it is told to stop.

Run by `probe record`, by `run` and `attach` with --record, and beside the job.  Invariant: whatever the disk does, the
job notices nothing, and recording goes on once it can.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ..client.agent_requests import require_agents
from ..client.endpoints import JOB, Address, Resolved, resolve
from ..diagnose.recorded import LEAST_S
from ..errors import EndpointError, OutputError, ProbeError, SilentError, UsageError
from ..host.processes import has_ended
from ..text import title
from ..version import __version__
from . import lock, manifest, mirrored
from .archive import Archive
from .asked import Asked
from .events import Events
from .flush import Flushes
from .job import RecordedJob, folder_of
from .mirror import Mirror
from .retention import Keep, retain
from .stored import Names

FLUSH_S = 8.0  # with two more until rows are final, ten seconds are the most that a kill can cost
WRITE_S = 60.0  # deriving tables costs about the same however few rows they have
_MOMENTS_S = 300.0
_LOOK_S = 1.0  # at whether the processes live
_LAST_S = 600.0  # after the job's end, until somebody has made room
_READER_S = 2.0  # that takes over what a recorder left, before this one goes on


@dataclass(frozen=True)
class Order:
    """What to record where.  folder: gets `job=NAME`; name: of the job, "" for its own or one made of its command and
    start; flush_s: between two flushes; write_s: between two that write tables, at first soon_s; stands_s: without a
    step, after which the job is asked why; follow: processes as long as one of which lives agents may come."""

    folder: Path
    name: str = ""
    keep: Keep = field(default_factory=Keep)
    flush_s: float = FLUSH_S
    write_s: float = WRITE_S
    soon_s: float = FLUSH_S
    stands_s: float = LEAST_S
    follow: Sequence[int] = ()


class Recorder:
    """run() until the job ends or `stop` holds; tell: gets a line about what happens.

    find: the agents as of now; raises EndpointError without any.  Raises UsageError if another recorder has the folder.
    """

    def __init__(
        self, find: Callable[[], Resolved], order: Order, tell: Callable[[str], object] = lambda line: None,
        key: str | None = None,
    ) -> None:  # fmt: skip
        self._find, self._order, self._key = find, order, key
        self._names, self._events = Names(), Events(tell)
        self._job = RecordedJob(find(), key=key)
        self._asked, self._is_told = self._asking(self._job), True
        self._began_s, self._written_s = time.monotonic(), -math.inf
        self._moments_s, self._ended = -_MOMENTS_S, set[str]()
        self._lock = -1
        try:
            self.folder = folder_of(order.folder, order.name, self._job)
            self._flushes, self._mirror = Flushes(self.folder, self._names, self._events.note_lost), Mirror(self.folder)
            self._prepare()
        except OSError as error:
            self.close()
            raise UsageError(f"Cannot record into {order.folder}: {error.strerror}.", "Give another one.") from None
        except BaseException:
            self.close()
            raise
        self._events.note("begun", f"Recording of {title(sorted(each.rank or 0 for each in self._job.facts))} begins.")

    def run(self, stop: Callable[[float], bool]) -> None:
        """stop(seconds): waits for so long; whether to stop.  Raises OutputError if the last rows are not written."""
        try:
            self.flush()
            while not self._is_stopped(stop):
                self._take_new_agents()
                self._job.look()
                if self._job.has_ended and not self._may_come:
                    break
                self.flush()
            self._end(stop)
        finally:
            self.close()

    def _end(self, stop: Callable[[float], bool]) -> None:
        """Write the last rows.  Where nothing can be written, try again: the memory of ranks goes with this process."""
        until = time.monotonic() + _LAST_S
        while not self.flush(stops=True):
            if stop(self._order.flush_s) or time.monotonic() >= until:
                self._events.note("ended", "The last rows could not be written.")
                raise OutputError(f"{self.folder} lacks the last rows.", "Make room, and record again.")

    def _is_stopped(self, stop: Callable[[float], bool]) -> bool:
        """Wait until the next flush is due, or the job is over."""
        due = time.monotonic() + self._order.flush_s
        while (left := due - time.monotonic()) > 0:
            self._ask()
            if stop(min(left, _LOOK_S)):
                return True
            if self._job.is_over:
                return False
        return False

    def _ask(self) -> None:
        """What the manifest and events tell of what the job says itself."""
        before = self._asked.stands
        if self._asked.ask() or not self._is_told:
            self._is_told = False
            with suppress(OSError):  # of which the next flush tells
                manifest.write(self.folder, self._manifest())
                self._is_told = True
        stands = self._asked.stands
        if stands and (before is None or before["code"] != stands["code"]):
            self._events.note("stands", stands["verdict"])
        elif before and not stands:
            self._events.note("steps", "Steps come again.")

    def _asking(self, job: RecordedJob) -> Asked:
        return Asked(job, self._find, self._key, self._order.stands_s)

    def close(self) -> None:
        self._asked.close()
        self._job.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    # ---- the agents

    @property
    def _may_come(self) -> bool:
        """Whether any of what starts agents lives yet."""
        return not all(map(has_ended, self._order.follow))

    def _others(self) -> Resolved | None:
        """The agents, if they are not those that are recorded; None as long as there are none."""
        try:
            found = self._find()
        except EndpointError:
            return None
        return None if {(each.pid, each.facts.id) for each in found.addresses} <= self._job.agents else found

    def _take_new_agents(self) -> None:
        found = self._others()
        if found is None:
            return
        try:
            job = RecordedJob(found, key=self._key)
        except ProbeError:  # they are just coming, or going
            return
        if not self.flush(changes=True):  # the rows of those that have gone are in no other memory any more
            job.close()
            return
        self._asked.close()
        self._job.close()
        self._mirror.forget()
        self._job, self._ended, self._moments_s = job, set(), -_MOMENTS_S
        self._asked = self._asking(job)

    # ---- a flush

    def flush(self, stops: bool = False, changes: bool = False) -> bool:
        """Write what is final, or mirror what is new; note that it cannot be written.  Whether it could be.

        changes: other agents will be recorded from now.
        """
        self._events.look_at_clock()
        ended = self._job.look()
        # of one that ends alone only at the second look: what it was in the midst of can be seen by then
        final = ended if stops or changes or self._job.has_ended else ended & self._ended
        self._ended = ended - final
        try:
            self._prepare()
            if ended or stops or changes or self._is_due:
                self._write(final, stops)
            else:
                self._events.write(self._flushes)
                self._mirror.copy()
        except OSError as error:
            self._flushes.forget()
            self._mirror.forget()
            self._ended = ended
            self._events.note_pause(error)
            return False
        self._job.drop(final)
        self._events.note_resumption()
        return True

    @property
    def _is_due(self) -> bool:
        """Whether tables are to be written: more often at first, so that who looks soon sees rows."""
        pause_s = min(self._order.write_s, max(self._order.soon_s, self._written_s - self._began_s))
        return time.monotonic() >= self._written_s + pause_s or not self._mirror.covers(self._job.held)

    def _write(self, final: Collection[str], stops: bool) -> None:
        """Raises OSError."""
        self._events.write(self._flushes)
        with suppress(SilentError):  # nobody can be read at this moment
            self._write_tables(final, stops)
        self._events.note_resumption()
        if stops and not self._events.holds("ended"):
            self._events.note("ended", "The job has ended." if self._job.has_ended else "Recording was stopped.")
        self._events.write(self._flushes)
        if stops:
            self._mirror.remove()
        self._flushes.merge()
        self._written_s = time.monotonic()

    def _write_tables(self, final: Collection[str], stops: bool) -> None:
        """Raises OSError, SilentError."""
        job = self._job.snapshot(self._flushes.begin)
        self._flushes.flush(job, final, stops, set(self._job.held))
        self._flushes.deposits(self._job.snapshot, job, {*self._job.held} if stops else final)
        held = {id: memory for id, memory in self._job.held.items() if id not in final}
        self._mirror.begin(held, {str(rank.facts.id): rank for rank in job.ranks}, self._flushes.begin)
        if final or stops or time.monotonic() >= self._moments_s + _MOMENTS_S:
            self._flushes.moments(self._job.snapshot())
            manifest.write(self.folder, self._manifest())
            retain(Archive(self._order.folder), self._order.keep, self._events.note_refused)
            self._moments_s = time.monotonic()

    def _prepare(self) -> None:
        """The folder, the lock and the manifest, where they are missing.  Raises OSError, UsageError."""
        if self._lock >= 0 and (self.folder / manifest.NAME).exists() and not self._is_new():
            return
        for folder in (self._order.folder, self.folder):
            with suppress(FileExistsError):
                os.mkdir(folder)
        self._take_lock()
        manifest.write(self.folder, self._manifest())
        self._described = self._job.agents

    def _is_new(self) -> bool:
        return self._described != self._job.agents

    def _take_lock(self) -> None:
        if self._lock >= 0 and lock.path(self.folder).exists():
            return
        taken = lock.take(self.folder, patience_s=_READER_S)
        if self._lock >= 0:
            os.close(self._lock)
            self._flushes.forget()
            self._mirror.forget()
        self._lock = taken
        mirrored.take_over(self.folder)

    def _manifest(self) -> dict[str, Any]:
        facts, ranks = self._job.facts, self._job.ranks
        ranks[min(ranks, key=int)] |= self._asked.said()
        began = min((each.attached_wall_ns for each in facts if each.attached_wall_ns), default=time.time_ns())
        return {
            "job": self.folder.name.removeprefix(JOB), "command": self._job.command, "probe": __version__,
            "world_size": max((each.world_size or 1 for each in facts), default=1),
            "attached": datetime.fromtimestamp(began / 1e9, timezone.utc).isoformat(),
            "ranks": ranks,
        }  # fmt: skip


def agents_of(endpoint: str) -> Callable[[], Resolved]:
    """What Recorder calls to find the agents of an endpoint: of those of its parts that have any at that moment.

    Raises EndpointError, and UsageError for a recording.
    """
    known = _present(endpoint)
    if any(each.connection for each in known.addresses):
        require_agents([], known.endpoint, "record", control=False)
    return lambda: _present(endpoint)


def _present(endpoint: str) -> Resolved:
    """Raises EndpointError if no part has an agent, or one stands for several jobs."""
    found, errors = dict[str, Address](), list[EndpointError]()
    for part in endpoint.split(","):
        try:
            found |= {each.url: each for each in resolve(part).addresses}
        except EndpointError as error:
            if error.code == "several-jobs":
                raise
            errors.append(error)
    if not found:
        raise errors[0]
    return Resolved(endpoint, [*found.values()])
