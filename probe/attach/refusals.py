"""Why a process cannot be attached to: every cause its own code, sentence and remedy.

Called by `target` and `tracer`.  A function either returns the AttachError to raise, or, named check_*,
raises it itself.  Permissions are judged from gathered facts by a function without any system call.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from ..errors import AttachError
from ..host.process_status import Status, my_status, read_status
from .sites import shares_our_files

CAP_SYS_PTRACE = 1 << 19
IN_A_CONTAINER = "in a container add --cap-add=SYS_PTRACE (Kubernetes: securityContext.capabilities.add: [SYS_PTRACE])"
YAMA = "/proc/sys/kernel/yama/ptrace_scope"


def absent(pid: int) -> AttachError:
    """There is no /proc/PID: no process, or one that is hidden from us."""
    try:
        if pid > 0:
            os.kill(pid, 0)
    except PermissionError:
        return _error("hidden", f"Process {pid} is hidden from you (/proc is mounted with hidepid).", _as_its_user(pid))
    except (ProcessLookupError, OverflowError):
        pass
    return _error("no-process", f"There is no process {pid}.", "See what can be attached to: probe list")


def ended(pid: int) -> AttachError:
    return _error("target-ended", f"Process {pid} ended while it was being attached to.", "See what runs: probe list")


def broken_off(pid: int) -> AttachError:
    return _error("agent-failed", f"Process {pid} broke off the attach.", f"Try again: probe attach {pid}")


def kernel_thread(pid: int) -> AttachError:
    return _error(
        "kernel-thread", f"Process {pid} is a thread of the kernel.", "See what can be attached to: probe list"
    )


def not_python(pid: int, executable: str) -> AttachError:
    name = os.path.basename(executable) or "unknown"
    return _error("not-python", f"Process {pid} ({name}) is not CPython.", "See what can be attached to: probe list")


def no_symbols(pid: int, executable: str) -> AttachError:
    return _error(
        "no-symbols",
        f"Process {pid} ({os.path.basename(executable)}) is a Python whose interpreter exports no symbols.",
        "Run the job with an ordinary CPython build, or call probe.start() in it.",
    )


def old_python(pid: int, version: str) -> AttachError:
    return _error("old-python", f"Process {pid} runs Python {version}.", "Run the job with Python 3.10 or newer.")


def free_threaded(pid: int) -> AttachError:
    return _error(
        "free-threaded",
        f"Process {pid} runs a free-threaded Python, in which rows cannot be recorded safely.",
        "Run the job with a build that has the GIL (python3.14 instead of python3.14t).",
    )


def musl(pid: int) -> AttachError:
    return _error(
        "musl", f"Process {pid} uses the C library musl.", "Run the job in an image with glibc (Debian, Ubuntu, RHEL)."
    )


def static(pid: int) -> AttachError:
    return _error("static", f"Process {pid} is statically linked.", "Run the job with a dynamically linked Python.")


def stopped(pid: int) -> AttachError:
    return _error("stopped", f"Process {pid} is stopped (SIGSTOP or Ctrl-Z).", f"Resume it first: kill -CONT {pid}")


def traced(pid: int, tracer: int) -> AttachError:
    name = _name(tracer)
    return _error("traced", f"Process {pid} is traced by {name} (pid {tracer}).", f"End {name} or detach it first.")


def no_pyzmq(pid: int, why: str, executable: str) -> AttachError:
    """executable: as the target has it."""
    inside = "" if shares_our_files(pid) else f"nsenter -a -r -t {pid} "
    return _error(
        "no-pyzmq",
        f"Process {pid} cannot import pyzmq: {why}.",
        f"Install it there: {inside}{executable} -m pip install pyzmq",
    )


def no_ptrace() -> AttachError:
    return _error(
        "seccomp",
        "A seccomp filter of this shell's container forbids ptrace, so nothing can be attached to.",
        f"Attach from the host, or {IN_A_CONTAINER}.",
    )


def yama_off() -> AttachError:
    return _error(
        "yama-off",
        "kernel.yama.ptrace_scope is 3: nobody may attach until the next reboot.",
        "Call probe.start() in the job.",
    )


def old_kernel() -> AttachError:
    return _error(
        "old-kernel", f"Linux {os.uname().release} is too old.", "Linux 5.3 or newer is needed on the job's machine."
    )


def check_state(pid: int, status: Status) -> None:
    """What the process's own state forbids."""
    if status.process != pid:
        raise _error(
            "is-thread",
            f"{pid} is a thread of process {status.process}.",
            f"Give the process: probe attach {status.process}",
        )
    if status.state in "ZX":
        raise _error(
            "zombie", f"Process {pid} has ended (zombie).", "Its parent has not waited for it yet; start it anew."
        )
    if status.tracer:
        raise traced(pid, status.tracer)
    if status.state in "Tt":
        raise stopped(pid)
    if status.shadow_stack:
        raise _error(
            "shadow-stack",
            f"Process {pid} runs with a user shadow stack, which forbids calls from outside.",
            "Start the job without GLIBC_TUNABLES=glibc.cpu.x86_shstk=on.",
        )


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
    """The kernel refused access: which of its rules did."""
    try:
        now = read_status(pid)
    except OSError:
        return ended(pid)
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
    """In the order in which the kernel checks."""
    pid, target_uid = access.pid, access.target_uid
    if access.memory_opened and access.seccomp:
        return _error(
            "seccomp",
            f"A seccomp filter of this shell's container forbids ptrace, so process {pid} cannot be attached to.",
            f"Attach from the host, or {IN_A_CONTAINER}.",
        )
    if access.yama == 3:
        return yama_off()
    if not access.same_user_namespace:
        return _error(
            "user-namespace",
            f"Process {pid} lives in another user namespace (a rootless container).",
            "Attach from inside that container, or as root on the host.",
        )
    if access.may_trace_all:
        return _error(
            "security-module",
            f"A security module (SELinux deny_ptrace, AppArmor, Landlock) forbids tracing process {pid}.",
            "Allow ptrace in its policy, or attach from outside the confinement.",
        )
    if access.my_uid != target_uid:
        return _error(
            "other-user", f"Process {pid} belongs to uid {target_uid}, you are uid {access.my_uid}.", _as_its_user(pid)
        )
    if not access.dumpable:
        return _error(
            "not-dumpable",
            f"Process {pid} is not dumpable (a setuid or setcap program, or PR_SET_DUMPABLE 0).",
            f"Attach as root: sudo probe attach {pid}",
        )
    if access.yama:
        allowed = "a parent of it" if access.yama == 1 else "root"
        return _error(
            "yama",
            f"kernel.yama.ptrace_scope is {access.yama}: only {allowed} may attach to process {pid}.",
            f"sudo probe attach {pid}, or sudo sysctl kernel.yama.ptrace_scope=0; {IN_A_CONTAINER}.",
        )
    if access.target_has_more_capabilities:
        return _error(
            "capabilities",
            f"Process {pid} has capabilities that you lack.",
            f"Attach as root: sudo probe attach {pid}; {IN_A_CONTAINER}.",
        )
    return _error(
        "security-module",
        f"The kernel refused access to process {pid}: SELinux, AppArmor or Landlock.",
        f"Attach as root: sudo probe attach {pid}",
    )


def _error(code: str, message: str, hint: str) -> AttachError:
    return AttachError(message, hint, code)


def _as_its_user(pid: int) -> str:
    return f"Attach as that user or as root: sudo probe attach {pid}"


def _name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip()
    except OSError:
        return "a process"


def yama() -> int:
    """kernel.yama.ptrace_scope, 0 where there is none."""
    try:
        with open(YAMA) as file:
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
    """The kernel gives /proc/PID of a process that is not dumpable to root."""
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None
