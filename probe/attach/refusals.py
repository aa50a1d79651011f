"""Why a process cannot be attached to: each cause with its own code, sentence and remedy.

Everything in `attach` takes its errors from here.  A function either returns the AttachError to raise or, if its name
begins with check_, raises it.  `judge` decides about permissions from facts gathered beforehand, without a system call.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import AS_ROOT, REFUSALS, AttachError
from ..host.process_status import Status, my_status, read_status

CAP_SYS_PTRACE = 1 << 19
OLDEST_PYTHON = (3, 10)
_YAMA = "/proc/sys/kernel/yama/ptrace_scope"


def refusal(code: str, pid: int = 0, **facts: object) -> AttachError:
    """The error with that code.  facts: the values that its texts name, besides pid."""
    message, hint = (text.format(pid=pid, **facts) for text in REFUSALS[code])
    return AttachError(message, hint, code)


def absent(pid: int) -> AttachError:
    """There is no /proc/PID: either no process, or one that is hidden from us."""
    try:
        if pid > 0:
            os.kill(pid, 0)
    except PermissionError:
        return refusal("hidden", pid)
    except (ProcessLookupError, OverflowError):
        pass
    return refusal("no-process", pid)


def old_kernel() -> AttachError:
    return refusal("old-kernel", release=os.uname().release)


def traced(pid: int, tracer: int) -> AttachError:
    try:
        name = read_status(tracer).name
    except OSError:
        name = "a process"
    return refusal("traced", pid, name=name, tracer=tracer)


def check_interpreter(pid: int, version: Sequence[int], abiflags: str) -> None:
    """Raise what only the interpreter itself can tell: its version, and whether it is free-threaded."""
    if tuple(version[:2]) < OLDEST_PYTHON:
        raise refusal("old-python", pid, version=".".join(map(str, version[:3])))
    if "t" in abiflags:
        raise refusal("free-threaded", pid)


def check_process(pid: int, status: Status | None = None) -> None:
    """Raise an error if this is the id of a thread."""
    process = (status or read_status(pid)).process
    if process != pid:
        raise refusal("is-thread", pid, process=process)


def check_state(pid: int, status: Status) -> None:
    """Raise what the process's own state forbids."""
    check_process(pid, status)
    if status.state in "ZX":
        raise refusal("zombie", pid)
    if status.tracer:
        raise traced(pid, status.tracer)
    if status.state in "Tt":
        raise refusal("stopped", pid)
    if status.shadow_stack:
        raise refusal("shadow-stack", pid)


@dataclass(frozen=True)
class Access:
    """The facts by which the kernel decides.  yama: kernel.yama.ptrace_scope, 0 where there is none;
    memory_opened: /proc/PID/mem could be opened, so only the system call ptrace itself is refused."""

    pid: int
    my_uid: int
    target_uid: int
    may_trace_all: bool
    yama: int
    same_user_namespace: bool
    dumpable: bool
    target_has_more_capabilities: bool
    seccomp: bool
    memory_opened: bool


def permission(pid: int, status: Status, memory_opened: bool = False) -> AttachError:
    """The kernel refused access: find the rule that did."""
    try:
        now = read_status(pid)
    except OSError:
        return refusal("target-ended", pid)
    if now.tracer:
        return traced(pid, now.tracer)
    mine = my_status()
    return judge(
        Access(
            pid=pid,
            my_uid=mine.uid,
            target_uid=status.uid,
            may_trace_all=bool(mine.effective & CAP_SYS_PTRACE),
            yama=yama(),
            same_user_namespace=_same_user_namespace(pid),
            dumpable=_owner(pid) == status.uid,
            target_has_more_capabilities=bool(status.permitted & ~mine.permitted),
            seccomp=mine.seccomp,
            memory_opened=memory_opened,
        )
    )


def judge(access: Access) -> AttachError:
    """The rule that refuses, tried in the kernel's order."""
    pid = access.pid
    if access.memory_opened and access.seccomp:
        return refusal("seccomp", what=f"process {pid}")
    if access.yama == 3:
        return refusal("yama-off")
    if not access.same_user_namespace:
        return refusal("user-namespace", pid)
    if access.may_trace_all:
        return refusal("security-module", pid)
    if access.my_uid != access.target_uid:
        return refusal("other-user", pid, uid=access.target_uid, you=access.my_uid)
    if not access.dumpable:
        return refusal("not-dumpable", pid)
    if access.yama:
        return refusal("yama", pid, scope=access.yama, who="an ancestor" if access.yama == 1 else "root")
    if access.target_has_more_capabilities:
        return refusal("capabilities", pid)
    message = f"The kernel refused access to process {pid}: SELinux, AppArmor or Landlock."
    return AttachError(message, AS_ROOT.format(pid=pid), "security-module")


def yama() -> int:
    """kernel.yama.ptrace_scope, 0 where there is none."""
    try:
        with open(_YAMA) as file:
            return int(file.read())
    except (OSError, ValueError):
        return 0


def _same_user_namespace(pid: int) -> bool:
    """True also where the kernel does not tell: the other causes are likelier."""
    try:
        return os.readlink("/proc/self/ns/user") == os.readlink(f"/proc/{pid}/ns/user")
    except OSError:
        return True


def _owner(pid: int) -> int | None:
    """The owner of /proc/PID, which is root for a process that is not dumpable."""
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None
