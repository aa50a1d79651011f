"""The server that a process's job has on this host, or gets from an attach.

Called by attach, whose time it is: nothing heavy is imported.  Invariant: a job has one server on a host; a second one
replaces it only to listen for other hosts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ..attach.refusals import refusal
from ..errors import AttachError
from ..host import agent_memory
from ..host.job_server import server_url
from ..host.process_status import read_status
from ..host.processes import descendants, environment, launcher, namespace, process
from ..settings import may_serve
from .launch import Prepared

# The number of ranks, as torchrun, Open MPI, MPICH and srun give it.  SLURM_NTASKS is in batch scripts, too, whose
# programs need not be one job.
_SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")


class JobServers:
    """What one command knows of servers.  listen: where they are to listen for other hosts (Listen.order); why_none:
    in words, why there is none."""

    def __init__(self, listen: Mapping[str, Any] | None = None, wanted: bool = True) -> None:
        self._listen = listen
        self._served: dict[int, Mapping[str, Any]] = {}  # by job
        self._wanted = wanted and (listen is not None or may_serve())
        self.why_none = ""

    @contextmanager
    def of(self, pid: int) -> Iterator[Mapping[str, Any] | None]:
        """What the agent of this process has to know of its job's server; None without one.  If there was none, it is
        started at the end of the block, unless that raises.

        Raises AttachError for a port that cannot be had.
        """
        job = job_of(pid)
        served = self._served.get(job) or (self._running(pid, job) if self._wanted else None)
        prepared = None if served is not None or not self._wanted else self._prepare(pid)
        if prepared is None:
            yield served
        else:
            with prepared:
                yield prepared.served
                self._start(prepared, job)

    def _prepare(self, pid: int) -> Prepared | None:
        try:
            return prepare(pid, self._listen)
        except (FileNotFoundError, ProcessLookupError):  # no such process, which attaching will tell
            return None
        except OSError as error:
            self.why_none = str(error.strerror or error)
            return None

    def _start(self, prepared: Prepared, job: int) -> None:
        try:
            prepared.start()
            self._served[job] = prepared.served
        except (OSError, AttachError) as error:  # the agent is inside already
            self.why_none, self._wanted = str(getattr(error, "strerror", None) or error).rstrip("."), False

    def _running(self, pid: int, job: int) -> Mapping[str, Any] | None:
        for each in [pid] if job == pid else descendants(job):
            facts = agent_memory.facts(each)
            here = facts is not None and namespace(each, "net") == namespace(pid, "net")  # two containers are two hosts
            if facts is None or facts.served is None or not here or not server_url(each, facts):
                continue
            if self._listen is None or facts.server_key == self._listen["public"]:
                return facts.served
            if facts.server_key is not None:
                raise refusal("other-key", pid, why=facts.tcp)
        return None


def prepare(pid: int, listen: Mapping[str, Any] | None) -> Prepared:
    """Raises OSError, AttachError."""
    status = read_status(pid)
    return Prepared(pid, status.uid, status.gid, listen)


def job_of(pid: int) -> int:
    """The process that represents its job, as in client.endpoints."""
    return (launcher(pid) if _has_peers(pid) else None) or pid


def _has_peers(pid: int) -> bool:
    """As far as it shows before the process is asked: mp.spawn tells its ranks their numbers as an argument."""
    started_with = environment(pid)
    size = next((said for name in _SIZES if (said := started_with.get(name, "")).isdecimal()), "1")
    return int(size) > 1 or ((found := process(pid)) is not None and found.is_spawned)
