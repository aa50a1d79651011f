"""What keeps this user from attaching: each condition, whether it holds, and what to do about it.

Called by the verb `doctor`.  It makes the same checks as `attach`, in the same order, with the same words and codes.
Nothing in the target is changed or stopped; one check traces its main thread for a moment.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial

from ..errors import AttachError
from ..host import agent_memory
from ..host.process_status import my_status, read_status
from ..host.processes import has_ended
from . import refusals
from .inject import ptrace
from .inject.target import examine, this_machine
from .python_installation import python_version
from .refusals import refusal
from .rendezvous import open_directory

_SCOPES = {
    0: "users may trace their own processes",
    1: "users without CAP_SYS_PTRACE may trace only their own descendants",
    2: "only root may trace",
    3: "nobody may trace until the next reboot",
}
_TRIAL_S = 5.0  # the child that is traced for a trial ends by itself, should nobody end it
_OLDEST_KERNEL = (5, 3)  # PTRACE_GET_SYSCALL_INFO


@dataclass(frozen=True)
class Condition:
    """detail: what was found; error: the refusal that attaching would raise, None where the condition holds; matters:
    whether attaching depends on it."""

    name: str
    detail: str
    error: AttachError | None = None
    matters: bool = True

    @property
    def holds(self) -> bool | None:
        """None where attaching does not depend on it."""
        return self.error is None if self.matters else None


def of_machine() -> list[Condition]:
    """What holds for every process: conditions of this machine, this user, this shell."""
    mine, scope = my_status(), refusals.yama()
    may = "may trace any process" if mine.effective & refusals.CAP_SYS_PTRACE else "may trace your own processes"
    told = f"kernel.yama.ptrace_scope is {scope}: {_SCOPES.get(scope, 'an unknown value')}"
    return [
        _check("processor", lambda: this_machine().name),
        _check("kernel", _kernel),
        Condition("you", f"uid {mine.uid}, {may}"),
        # what the scope means for one process is said there: only 3 forbids all
        Condition("yama", told, refusal("yama-off") if scope == 3 else None),
        _check("ptrace", _ptrace),
    ]


def of_process(pid: int) -> list[Condition]:
    """What holds for this process, up to the first failure that keeps the next conditions from being checked."""
    found: list[Condition] = []
    for name, look in (
        ("process", _state),
        ("interpreter", _interpreter),
        ("tracing", _tracing),
        ("rendezvous", _rendezvous),
        ("agent", _agent),
    ):
        found.append(_check(name, partial(look, pid), pid))
        if not found[-1].holds and name != "rendezvous":
            break
    return found


def _check(name: str, look: Callable[[], str], pid: int = 0) -> Condition:
    try:
        return Condition(name, look())
    except AttachError as refused:
        error = refused
    except (FileNotFoundError, ProcessLookupError):
        error = refusal("target-ended", pid)
    return Condition(name, error.message, error)


def _kernel() -> str:
    release = os.uname().release
    if tuple(int(part) for part in re.findall(r"\d+", release)[:2]) < _OLDEST_KERNEL:
        raise refusals.old_kernel()
    return f"Linux {release}"


def _ptrace() -> str:
    """A container's filter may forbid the system call itself: tried on a child of our own."""
    child = os.fork()
    if child == 0:
        try:
            time.sleep(_TRIAL_S)
        finally:
            os._exit(0)
    try:
        if not _may_trace(child):
            raise refusal("seccomp", what="any process")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return "the system call is allowed here"


def _may_trace(pid: int) -> bool:
    """Tried from a process of its own: when it ends the kernel detaches, and nothing was ever stopped."""
    child = os.fork()
    if child == 0:
        refused = True
        try:
            ptrace.seize(pid)
            refused = False
        finally:
            os._exit(refused)
    return os.waitpid(child, 0)[1] == 0


def _state(pid: int) -> str:
    try:
        status = read_status(pid)
    except OSError:
        raise refusals.absent(pid) from None
    refusals.check_state(pid, status)
    return f"{status.name}, uid {status.uid}, {'asleep' if status.state == 'S' else 'running'}"


def _interpreter(pid: int) -> str:
    with closing(examine(pid)) as target:
        version = ".".join(map(str, python_version(pid) or ("of unknown version",)))
        return f"CPython {version} with callable symbols, {os.path.basename(target.place(target.symbols['mmap']))}"


def _tracing(pid: int) -> str:
    if _may_trace(pid):
        return "allowed"
    if has_ended(pid):
        raise refusal("target-ended", pid)
    raise refusals.permission(pid, read_status(pid), memory_opened=True)


def _rendezvous(pid: int) -> str:
    descriptor, path = open_directory(pid, read_status(pid))
    os.close(descriptor)
    return f"you and the process can both write to {path or '/'}"


def _agent(pid: int) -> str:
    facts = agent_memory.facts(pid)
    return "none yet" if facts is None else f"already there, version {facts.version}"
