"""Why a process cannot be attached to: each cause with its own code, sentence and remedy.

Everything in `attach` takes its errors from here.  A function either returns the AttachError to raise or, if its name
begins with check_, raises it.  `judge` decides about permissions from facts gathered beforehand, without a system call.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from ..errors import AttachError
from ..host.process_status import Status, my_status, read_status
from .python_installation import shares_our_files

CAP_SYS_PTRACE = 1 << 19
_YAMA = "/proc/sys/kernel/yama/ptrace_scope"
_AGAIN = "Try again: probe attach {pid}"
_LIST = "List the processes you can attach to: probe list"
_AS_ITS_USER = "Attach as that user or as root: sudo probe attach {pid}"
_AS_ROOT = "Attach as root: sudo probe attach {pid}"
_START = "Call probe.start() in the job."
_IN_A_CONTAINER = (
    "in a container, add --cap-add=SYS_PTRACE (Kubernetes: securityContext.capabilities.add: [SYS_PTRACE])"
)

# code -> (message, hint), both templates
TEXTS = {
    # this machine, this user
    "architecture": ("This machine is {machine}; attaching works on x86_64 only.", _START),
    "old-kernel": ("Linux {release} is too old.", "The job's machine needs Linux 5.3 or newer."),
    "seccomp": (
        "A seccomp filter on this shell's container forbids ptrace, so you cannot attach to {what}.",
        f"Attach from the host, or {_IN_A_CONTAINER}.",
    ),
    "yama-off": ("kernel.yama.ptrace_scope is 3: nobody may attach until the next reboot.", _START),
    # the process
    "no-process": ("There is no process {pid}.", _LIST),
    "hidden": ("Process {pid} is hidden from you (/proc is mounted with hidepid).", _AS_ITS_USER),
    "kernel-thread": ("Process {pid} is a kernel thread.", _LIST),
    "is-thread": ("{pid} is a thread of process {process}.", "Attach to the process: probe attach {process}"),
    "zombie": ("Process {pid} has ended (zombie).", "Its parent has not reaped it yet; start the job again."),
    "stopped": ("Process {pid} is stopped (SIGSTOP or Ctrl-Z).", "Resume it first: kill -CONT {pid}"),
    "traced": ("Process {pid} is traced by {name} (pid {tracer}).", "Quit {name} or detach it first."),
    "shadow-stack": (
        "Process {pid} runs with a user shadow stack, which forbids calls from outside.",
        "Start the job without GLIBC_TUNABLES=glibc.cpu.x86_shstk=on.",
    ),
    "target-ended": ("Process {pid} ended during the attach.", "See what is running: probe list"),
    # its interpreter and libraries
    "not-python": ("Process {pid} ({name}) is not CPython.", _LIST),
    "no-symbols": (
        "The Python interpreter of process {pid} ({name}) exports no symbols.",
        "Run the job with an ordinary CPython build, or call probe.start() in it.",
    ),
    "old-python": ("Process {pid} runs Python {version}.", "Run the job with Python 3.10 or newer."),
    "free-threaded": (
        "Process {pid} runs a free-threaded Python, in which rows cannot be recorded safely.",
        "Run the job with a build that has the GIL (python3.14 instead of python3.14t).",
    ),
    "musl": ("Process {pid} uses the C library musl.", "Run the job in an image with glibc (Debian, Ubuntu, RHEL)."),
    "static": ("Process {pid} is statically linked.", "Run the job with a dynamically linked Python."),
    "symbols": ("Process {pid} has no {symbol}.", "Its C library or interpreter is of an unknown kind."),
    "no-pyzmq": ("Process {pid} cannot import pyzmq: {why}.", "Install it there: {command} -m pip install pyzmq"),
    # who may trace it
    "user-namespace": (
        "Process {pid} is in another user namespace (a rootless container).",
        "Attach from inside that container, or as root on the host.",
    ),
    "security-module": (
        "A security module (SELinux deny_ptrace, AppArmor, Landlock) forbids tracing process {pid}.",
        "Allow ptrace in its policy, or attach from outside the confinement.",
    ),
    "other-user": ("Process {pid} belongs to uid {uid}; you are uid {you}.", _AS_ITS_USER),
    "not-dumpable": (
        "Process {pid} is not dumpable (a setuid or setcap program, or PR_SET_DUMPABLE 0).",
        _AS_ROOT,
    ),
    "yama": (
        "kernel.yama.ptrace_scope is {scope}: only {who} may attach to process {pid}.",
        f"sudo probe attach {{pid}}, or sudo sysctl kernel.yama.ptrace_scope=0; {_IN_A_CONTAINER}.",
    ),
    "capabilities": ("Process {pid} has capabilities that you lack.", f"{_AS_ROOT}; {_IN_A_CONTAINER}."),
    # the attach itself
    "no-rendezvous": (
        "No directory is writable for both you and process {pid} ({directories}).",
        "Give the job's container a writable /tmp.",
    ),
    "no-safe-point": ("No thread of process {pid} reached a point where it can be used safely ({why}).", _AGAIN),
    "call-failed": ("A call in process {pid} failed: {why}.", _AGAIN),
    "no-memory": (
        "Process {pid} could not map a page: {why}.",
        "Raise its memory limit (ulimit -v, or the container's limit).",
    ),
    "no-thread": (
        "Process {pid} could not create a thread: {why}.",
        "Raise its limit on processes (ulimit -u, or the cgroup's pids.max) or on memory.",
    ),
    "tracing-failed": ("Tracing process {pid} failed: {why}.", _AGAIN),
    "no-connection": (
        "The interpreter of process {pid} ran our code, but could not connect back: its standard library, its "
        "temporary directory or a new thread is out of its reach.",
        "Check that it may read its Python installation, write to /tmp and start threads.",
    ),
    "gil-held": (
        "Process {pid} did not answer within {timeout:g} s: {holder}. The request was withdrawn.",
        "Try again once that call has ended: probe attach {pid}",
    ),
    "main-thread-busy": (
        "Process {pid} can be attached to only through its main thread: {why}.",
        "Try again while it runs Python code: probe attach {pid}",
    ),
    "attach-timeout": (
        "The agent in process {pid} did not start within {timeout:g} s. The request was withdrawn.",
        "Allow more time: probe attach --timeout 60 {pid}",
    ),
    "attach-running": ("Process {pid} is busy: {why}.", "Wait for it, then: probe attach {pid}"),
    "agent-failed": ("The agent failed in process {pid} and was taken out: {why}.", "Please report this."),
    # where it is to listen; `why` is the agent's
    "port-in-use": ("Process {pid} {why}.", "Omit the port to take any free one: --listen HOST"),
    "other-key": ("Process {pid} {why}.", "Use that key, or first: probe {pid} detach"),
    "cannot-listen": ("Process {pid} {why}.", "Use an address of this machine: ip -brief address"),
}


def refusal(code: str, pid: int = 0, **facts: object) -> AttachError:
    """The error with that code.  facts: the values that its texts name, besides pid."""
    message, hint = (text.format(pid=pid, **facts) for text in TEXTS[code])
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


def broken_off(pid: int) -> AttachError:
    return AttachError(f"Process {pid} broke off the attach.", _AGAIN.format(pid=pid), "agent-failed")


def old_kernel() -> AttachError:
    return refusal("old-kernel", release=os.uname().release)


def traced(pid: int, tracer: int) -> AttachError:
    try:
        name = read_status(tracer).name
    except OSError:
        name = "a process"
    return refusal("traced", pid, name=name, tracer=tracer)


def no_pyzmq(pid: int, why: str, executable: str) -> AttachError:
    """executable: its path as the target sees it."""
    inside = "" if shares_our_files(pid) else f"nsenter -a -r -t {pid} "
    return refusal("no-pyzmq", pid, why=why, command=inside + executable)


def check_state(pid: int, status: Status) -> None:
    """Raise what the process's own state forbids."""
    if status.process != pid:
        raise refusal("is-thread", pid, process=status.process)
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
    return AttachError(message, _AS_ROOT.format(pid=pid), "security-module")


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
