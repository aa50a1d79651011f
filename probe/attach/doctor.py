"""What stands between this user and attaching: each condition, whether it holds, and its remedy.

Called by the verb `doctor`.  It looks with the eyes of `attach`: the same checks in the same order, the same words and
codes.  Nothing of the target is changed or stopped; for one check its main thread is traced for a moment.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ..errors import AttachError
from ..host import agent_memory
from ..host.memory_maps import read_mappings
from ..host.process_status import Status, my_status, read_status
from ..host.processes import has_ended
from . import refusals
from .inject import ptrace
from .inject.machines import this_machine
from .inject.target import examine
from .rendezvous import find_place
from .sites import executable, has_package, python_version
from .zmq_loan import lend

_SCOPES = {
    0: "a user may trace what is his",
    1: "without CAP_SYS_PTRACE only a parent may trace",
    2: "only root may trace",
    3: "nobody may trace until the next reboot",
}
_TRIAL_S = 5.0  # a child to be traced ends by itself, should nobody end it
_OLDEST_KERNEL = (5, 3)  # PTRACE_GET_SYSCALL_INFO


@dataclass(frozen=True)
class Finding:
    """One condition.  error: what attaching would be refused with, None where the condition holds."""

    what: str
    told: str
    error: AttachError | None = None

    @property
    def holds(self) -> bool:
        return self.error is None


def of_machine() -> list[Finding]:
    """What holds for every process: of this machine, this user, this shell."""
    mine = my_status()
    return [
        _tried("processor", _processor),
        _tried("kernel", _kernel),
        Finding("you", _who(mine)),
        _yama(mine),
        _tried("ptrace", _ptrace),
    ]


def of_process(pid: int) -> list[Finding]:
    """What holds for this one, up to the first condition that keeps the next ones from being looked at."""
    found: list[Finding] = []
    for what, look in (
        ("process", _state),
        ("interpreter", _interpreter),
        ("tracing", _tracing),
        ("meeting place", _place),
        ("pyzmq", _pyzmq),
        ("agent", _agent),
    ):
        found.append(_tried(what, partial(_looked, look, pid)))
        if not found[-1].holds and what != "meeting place":
            break
    return found


def _tried(what: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(what, look())
    except AttachError as error:
        return Finding(what, error.message, error)


def _looked(look: Callable[[int], str], pid: int) -> str:
    try:
        return look(pid)
    except (FileNotFoundError, ProcessLookupError):
        raise refusals.ended(pid) from None


def _processor() -> str:
    this_machine()
    return os.uname().machine


def _kernel() -> str:
    release = os.uname().release
    numbers = tuple(int(part) for part in re.findall(r"\d+", release)[:2])
    if numbers < _OLDEST_KERNEL:
        raise refusals.old_kernel()
    return f"Linux {release}"


def _who(mine: Status) -> str:
    may = "may trace any process" if mine.effective & refusals.CAP_SYS_PTRACE else "may trace your own processes"
    return f"uid {mine.uid}, {may}"


def _yama(mine: Status) -> Finding:
    """What it means for a given process is said there: only 3 forbids all."""
    scope = refusals.yama()
    told = f"kernel.yama.ptrace_scope is {scope}: {_SCOPES.get(scope, 'of a kind not known')}"
    return Finding("yama", told, refusals.yama_off() if scope == 3 else None)


def _ptrace() -> str:
    """A filter of a container may forbid the system call itself: tried on a child of our own."""
    child = os.fork()
    if child == 0:
        try:
            time.sleep(_TRIAL_S)
        finally:
            os._exit(0)
    try:
        if not _may_trace(child):
            raise refusals.no_ptrace()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return "the system call is allowed here"


def _may_trace(pid: int) -> bool:
    """Tried from a process of its own: at its end the kernel lets go, and nothing was ever stopped."""
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
    with contextlib.closing(examine(pid)) as target:
        version = python_version(pid)
        name = ".".join(map(str, version)) if version else "of a version not known"
        return f"CPython {name} that can be called, {os.path.basename(target.place(target.symbols['mmap']))}"


def _tracing(pid: int) -> str:
    if not _may_trace(pid):
        if has_ended(pid):
            raise refusals.ended(pid)
        raise refusals.permission(pid, read_status(pid), memory_opened=True)
    return "allowed"


def _place(pid: int) -> str:
    return f"{find_place(pid, read_status(pid)) or '/'} can be written to by both"


def _pyzmq(pid: int) -> str:
    if any("/zmq/backend/cython/" in mapping.path for mapping in read_mappings(pid)):
        return "loaded"
    if has_package(pid, "zmq"):
        return "installed"
    version = python_version(pid)
    if version is None:
        return "not known; that of this command is lent where it fits"
    loan = lend([f".cpython-3{version[1]}-{os.uname().machine}-linux-gnu.so", ".abi3.so", ".so"], version)
    if not loan["path"]:
        raise refusals.no_pyzmq(pid, loan["refused"], executable(pid))
    return "that of this command is lent, should there be none"


def _agent(pid: int) -> str:
    said = agent_memory.facts(pid)
    return "none yet" if said is None else f"there already, version {said.get('agent')}"
