"""What two looks at every rank of a job show, and what follows from them: who waits, who is late, how long it is quiet.

looks.py collects it, probe.diagnose.rules judge it.  Invariant: pure; what is unknown is None or empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from ...snapshot.flight_recorder import Entry, Pending, pending
from ...snapshot.stacks import Thread, training_thread
from ...text import short
from .pauses import Pauses

BUSY = 0.25  # share of a core from which a thread counts as computing
_MAY_COMPUTE = 0.015  # share of a core from which one that sleeps in between may compute,
_POLLS = 2  # if it works for as long as so many of the simplest polls each time that it wakes
_LOADER, _INNERMOST = "torch/utils/data/dataloader.py", 12  # frames
_MOVED_BYTES = 1 << 20  # from which on a process counts as reading or writing
_WAITS = ("selectors.py", "socketserver.py", "asyncio/", "concurrent/futures/thread.py")
_SOCKET, _SERVERS = "socket.py", ("socketserver.py", "http/server.py")  # it serves if it is inside of one of these
_AWAITED = (  # it waits for work of its own, or for an answer
    "torch/", "multiprocessing/", "subprocess.py", "queue.py", "http/client.py", "urllib", "requests/", "httpx/",
    "httpcore/", "redis/",
)  # fmt: skip
_LEAST_GAPS = 4  # between the collectives of a rank: fewer do not show what is usual


@dataclass(frozen=True)
class RankEvidence:
    """One rank.  condition: answers, silent, stopped, ended, unattached or unseen (not covered by the endpoint); times
    in seconds, None where unknown."""

    rank: int
    pid: int
    condition: str
    steps: int | None = None  # of the job, completed
    step_age_s: float | None = None  # since the last one ended
    usual_step_s: float | None = None
    holder: str = ""  # whose snippet its training waits for
    held_s: float | None = None  # since when
    freed_s: float | None = None  # since a snippet let it go on
    attached_s: float | None = None  # since the attach
    rows: int = 0  # recorded between the two looks
    running: float | None = None  # share of a core that the training thread used between the two looks
    core_wait: float = 0.0  # share of that time in which the thread was ready to run and waited for a core
    work_s: float | None = None  # processor time of that thread each time that it woke between the two looks
    poll_s: float = 50e-6  # that of the simplest poll on this machine
    below: float | None = None  # likewise of the processes below it: workers of loaders and compilers
    on_device: bool = False  # it uses one, such as CUDA
    moved_bytes: int = 0  # that its process read and wrote between the two looks
    threads: Sequence[Thread] = ()  # at the second look
    moved: bool = False  # the training thread was elsewhere at the first look
    sleeps: bool = False  # it waited for nothing but time or standard input at both looks
    entries: Sequence[Entry] = ()  # the collectives it has issued
    workers: Sequence[str] = ()  # its child processes that ended or are stopped, in words
    gil: str = ""  # if it does not answer: which thread holds its GIL, in words
    host: str = ""  # of its process, if that is not this machine
    left_alone: str = ""  # why its collectives are not recorded, if it is because its devices are left alone

    @property
    def thread(self) -> Thread | None:
        """The one that trains."""
        return training_thread(self.threads)

    @property
    def is_busy(self) -> bool:
        """By the time in which it did not wait for a core: other work may leave it little of one."""
        return self.running is not None and 0 < self.running >= BUSY * (1 - self.core_wait)

    @property
    def may_compute(self) -> bool:
        """Whether it works for a while each time that it wakes: it computes little, or looks at much when it polls."""
        return (self.running or 0) >= _MAY_COMPUTE and (self.work_s or 0) >= _POLLS * self.poll_s and not self.on_device

    @property
    def children_work(self) -> bool:
        return (self.below or 0) >= BUSY

    @property
    def moves_bytes(self) -> bool:
        return self.moved_bytes >= _MOVED_BYTES

    @property
    def is_alive(self) -> bool:
        """Whether it computes or moves, be it slowly: a rank that does is not hung.

        A thread that waits for a device uses a whole core, so that alone says nothing where there is one.
        """
        works = (self.is_busy and not self.on_device) or self.children_work
        return works or self.moved or self.rows > 0 or self.moves_bytes

    @property
    def is_compiling(self) -> bool:
        """Whether the training thread is in torch's compiler, and something is being done there."""
        return self.is_alive and self.thread is not None and self.thread.is_compiling

    @property
    def is_idle(self) -> bool:
        """Whether the thread waits for somebody to ask for something, as a server does."""
        frames = () if self.thread is None else self.thread.frames
        files = [short(frame.file) for frame in frames]
        if not files or any(file.startswith(_AWAITED) for file in files):
            return False
        if files[0].startswith(_SOCKET):
            return frames[0].function == "accept" or any(file.startswith(_SERVERS) for file in files)
        return files[0].startswith(_WAITS)

    @property
    def is_loading(self) -> bool:
        """Whether the training thread is in torch's data loader, or in something that the loader called."""
        frames = () if self.thread is None else self.thread.frames[:_INNERMOST]
        return any(frame.file.endswith(_LOADER) for frame in frames)


@dataclass(frozen=True)
class Evidence:
    """All ranks, by rank.  groups: name -> members; now_ns: wall clock of the second look; absent: ranks that should
    be processes of this machine and are not."""

    endpoint: str
    ranks: Sequence[RankEvidence]
    absent: tuple[int, ...]
    groups: Mapping[str, Sequence[int]]
    now_ns: int
    look_s: float  # between the two looks
    pairs: Sequence[Pending] = ()  # operations between two ranks
    machines: Sequence[str] = ()  # the load of hosts and devices, in lines
    pauses: Pauses = field(default_factory=Pauses)

    @cached_property
    def waits(self) -> list[Pending]:
        """The collectives and the operations between two ranks that are in flight, oldest first."""
        entries = {each.rank: each.entries for each in self.ranks if each.entries}
        return sorted([*pending(entries, self.groups), *self.pairs], key=lambda each: each.created_ns)

    @property
    def waited_for(self) -> list[int]:
        return sorted({rank for each in self.waits for rank in (*each.missing, *each.unknown)})

    @property
    def late(self) -> list[RankEvidence]:
        """The ranks that others wait for and that wait for no other; a rank that is alone counts as late."""
        if len(self.ranks) == 1:
            return list(self.ranks)
        if not self.waits:
            return [each for each in self.ranks if each.is_loading]
        waiting = {rank for each in self.waits for rank in each.waiting}
        wanted = [rank for rank in self.waited_for if rank not in waiting] or self.waited_for
        return [each for each in self.ranks if each.rank in wanted]

    @property
    def mute(self) -> list[RankEvidence]:
        return [each for each in self.ranks if each.condition in ("silent", "unattached", "unseen")]

    @property
    def awaited(self) -> Sequence[RankEvidence]:
        """The ranks on which it depends that the job goes on: the late ones, else those that do not answer, else all.

        A rank that gives no answer is taken for a late one if nothing is known to be in flight.
        """
        return (self.late if self.waits else []) or self.mute or self.late or self.ranks

    @property
    def is_alive(self) -> bool:
        """Whether it computes or moves where others wait for it; where none waits, anywhere."""
        return self._where_awaited([each.is_alive for each in self.awaited])

    @property
    def may_be_alive(self) -> bool:
        return self._where_awaited([each.is_alive or each.may_compute for each in self.awaited])

    def _where_awaited(self, alive: Sequence[bool]) -> bool:
        return any(alive) if self.awaited == self.ranks and not self.waits else bool(alive) and all(alive)

    @property
    def quiet_s(self) -> float | None:
        """Time since the job last moved: a step ended, a collective was issued, a snippet let it go on; None if nothing
        of that has been seen."""
        ages = [age for each in self.ranks for age in (each.step_age_s, each.freed_s) if age is not None]
        issued = [entry.created_ns for each in self.ranks for entry in each.entries]
        ages += [(self.now_ns - max(issued)) / 1e9] if issued else []
        return max(0.0, min(ages)) if ages else None

    @property
    def attached_s(self) -> float:
        """Since the last of the ranks was attached to; 0 if that is not known."""
        return min((each.attached_s for each in self.ranks if each.attached_s is not None), default=0.0)

    @property
    def usual_quiet_s(self) -> float | None:
        """The longest usual time between two steps, or two collectives of a rank without probe's pauses in between."""
        known = [each.usual_step_s for each in self.ranks if each.usual_step_s is not None]
        for each in self.ranks:
            gaps = sorted(self.pauses.gaps([entry.created_ns for entry in each.entries]))
            if len(gaps) >= _LEAST_GAPS:
                known.append(gaps[-2] / 1e9)  # the longest may be the start
        return max(known) if known else None

    def with_unseen(self) -> Evidence:
        """The same with the ranks that others wait for and that the endpoint does not cover."""
        known = {*(each.rank for each in self.ranks), *self.absent}
        unseen = [RankEvidence(rank, 0, "unseen") for rank in self.waited_for if rank not in known]
        return replace(self, ranks=[*self.ranks, *unseen])
