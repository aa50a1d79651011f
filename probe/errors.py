"""Every way in which probe can fail: the classes below ProbeError, each with its stable codes and an exit status.

Only `main()` prints and exits; everything else raises.  A message is one line: what happened, with the value, and the
next command (the hint).
"""

from __future__ import annotations

from typing import ClassVar

AGAIN = "Try again: probe attach {pid}"
_LIST = "List the processes you can attach to: probe list"
_SUDO = 'sudo "$(command -v probe)" attach {pid}'  # by its path: sudo's secure_path lacks a venv's, conda's, ~/.local
_AS_ITS_USER = f"Attach as that user or as root: {_SUDO}"
AS_ROOT = f"Attach as root: {_SUDO}"
_START = "Call probe.start() in the job."
_IN_A_CONTAINER = (
    "in a container, add --cap-add=SYS_PTRACE (Kubernetes: securityContext.capabilities.add: [SYS_PTRACE])"
)

# Why a process cannot be attached to: code -> (message, hint), both templates.
REFUSALS = {
    # this machine, this user
    "architecture": ("This machine is {machine}; attaching works on x86_64 only.", _START),
    "old-kernel": ("Linux {release} is older than 5.3.", "Attaching needs Linux 5.3 or newer on the job's machine."),
    "seccomp": ("A seccomp filter on this shell's container forbids ptrace, so you cannot attach to {what}.",
                f"Attach from the host, or {_IN_A_CONTAINER}."),
    "yama-off": ("kernel.yama.ptrace_scope is 3: nobody may attach until the next reboot.", _START),
    # the process
    "no-process": ("There is no process {pid}.", _LIST),
    "hidden": ("Process {pid} is hidden from you (/proc is mounted with hidepid).", _AS_ITS_USER),
    "kernel-thread": ("Process {pid} is a kernel thread.", _LIST),
    "is-thread": ("{pid} is a thread of process {process}.", "Attach to the process: probe attach {process}"),
    "zombie": ("Process {pid} has ended (zombie).", "Its parent has not reaped it yet; start the job again."),
    "stopped": ("Process {pid} is stopped (SIGSTOP or Ctrl-Z).", "Resume it first: kill -CONT {pid}"),
    "traced": ("Process {pid} is traced by {name} (pid {tracer}).", "Quit {name} or detach it first."),
    "shadow-stack": ("Process {pid} runs with a user shadow stack, which forbids calls from outside.",
                     "Start the job without GLIBC_TUNABLES=glibc.cpu.x86_shstk=on."),
    "target-ended": ("Process {pid} ended during the attach.", "See what is running: probe list"),
    # its interpreter and libraries
    "not-python": ("Process {pid} ({name}) is not CPython.", _LIST),
    "no-symbols": ("The Python interpreter of process {pid} ({name}) exports no symbols.",
                   "Run the job with an ordinary CPython build, or call probe.start() in it."),
    "old-python": ("Process {pid} runs Python {version}.", "Run the job with Python 3.10 or newer."),
    "free-threaded": ("Process {pid} runs a free-threaded Python, in which rows cannot be recorded safely.",
                      "Run the job with a build that has the GIL (python3.14 instead of python3.14t)."),
    "monkey-patched": ("gevent or eventlet has monkey-patched process {pid}: the agent gets no thread of its own.",
                       "Start the job without gevent.monkey.patch_all() or eventlet.monkey_patch()."),
    "musl": ("Process {pid} uses the C library musl.", "Run the job in an image with glibc (Debian, Ubuntu, RHEL)."),
    "static": ("Process {pid} is statically linked.", "Run the job with a dynamically linked Python."),
    "symbols": ("Process {pid} has no {symbol}.", "Its C library or interpreter is of an unknown kind."),
    # who may trace it
    "user-namespace": ("Process {pid} is in another user namespace (a rootless container).",
                       "Attach from inside that container, or as root on the host."),
    "security-module": ("A security module (SELinux deny_ptrace, AppArmor, Landlock) forbids tracing process {pid}.",
                        "Allow ptrace in its policy, or attach from outside the confinement."),
    "other-user": ("Process {pid} belongs to uid {uid}; you are uid {you}.", _AS_ITS_USER),
    "not-dumpable": ("Process {pid} is not dumpable (a setuid or setcap program, or PR_SET_DUMPABLE 0).", AS_ROOT),
    "yama": ("kernel.yama.ptrace_scope is {scope}: only {who} may attach to process {pid}.",
             f"{_SUDO}, or sudo sysctl kernel.yama.ptrace_scope=0; {_IN_A_CONTAINER}."),
    "capabilities": ("Process {pid} has capabilities that you lack.", f"{AS_ROOT}; {_IN_A_CONTAINER}."),
    # the attach itself
    "no-rendezvous": ("No directory is writable for both you and process {pid} ({directories}).",
                      "Give the job's container a writable /tmp."),
    "no-safe-point": ("No thread of process {pid} reached a point where it can be used safely ({why}).", AGAIN),
    "call-failed": ("A call in process {pid} failed: {why}.", AGAIN),
    "no-memory": ("Process {pid} could not map a page: {why}.",
                  "Raise its memory limit (ulimit -v, or the container's limit)."),
    "no-descriptors": ("Process {pid} has no room for the agent: {why}.",
                       "Raise its limit on open files: prlimit --nofile=4096 --pid {pid}"),
    "file-size": ("Process {pid} has no room for the agent: {why}.",
                  "Raise its limit, as root where its hard limit is as low: prlimit --fsize=unlimited --pid {pid}"),
    "no-thread": ("Process {pid} could not create a thread: {why}.",
                  "Raise its limit on processes (ulimit -u, or the cgroup's pids.max) or on memory."),
    "tracing-failed": ("Tracing process {pid} failed: {why}.", AGAIN),
    "no-connection": ("The interpreter of process {pid} ran our code, but could not connect back: its standard "
                      "library, its temporary directory or a new thread is out of its reach.",
                      "Check that it may read its Python installation, write to /tmp and start threads."),
    "gil-held": ("Process {pid} did not answer within {timeout:g} s: {holder}. The request was withdrawn.",
                 "Try again once that call has ended: probe attach {pid}"),
    "main-thread-busy": ("Process {pid} can be attached to only through its main thread: {why}.",
                         "Try again while it runs Python code: probe attach {pid}"),
    "attach-timeout": ("The agent in process {pid} did not start within {timeout:g} s. The request was withdrawn.",
                       "Allow more time: probe attach --timeout 60 {pid}"),
    "has-devices": ("Process {pid} has an agent already, which may record on devices.",
                    "First: probe {pid} detach. Then attach again with --no-devices."),
    "attach-running": ("Process {pid} is busy: {why}.", "Wait for it, then: probe attach {pid}"),
    "agent-failed": ("The agent failed in process {pid} and was taken out: {why}.", "Please report this."),
    # its server
    "port-in-use": ("The job's server cannot listen at {why}.", "Omit the port to take any free one: --listen HOST"),
    "other-key": ("Process {pid} is served at {why} with another key.", "Use that key, or first: probe {pid} detach"),
    "server-ends": ("{python} ends at once where LD_LIBRARY_PATH is all of its environment.",
                    "Run the server in this one: probe {pid} serve --foreground"),
    "cannot-listen": ("The job's server cannot listen at {why}.", "Use an address of this machine: ip -brief address"),
}  # fmt: skip


class ProbeError(Exception):
    """message: what happened, with the value; hint: the next command or remedy; code: stable, for scripts.

    Example: `except probe.ProbeError as error: print(error.code, error.message, error.hint)`

    A class declares its `exit_status` and its `codes` with the sentence that documents each; an error has the first of
    them if none is given.
    """

    exit_status = 1
    code = "probe"
    codes: ClassVar[dict[str, str]] = {}

    def __init_subclass__(cls) -> None:
        if "codes" in vars(cls):
            cls.code = next(iter(cls.codes))

    def __init__(self, message: str, hint: str = "", code: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if code:
            if code not in CODES:
                raise AssertionError(f"undeclared error code {code!r}")
            self.code = code

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()


class UsageError(ProbeError):
    """The command line or the arguments of a call are wrong; nothing was done."""

    exit_status = 2
    codes: ClassVar = {
        "usage": "The command line cannot be understood.",
        "key-file": "The key file cannot be created, read or used.",
        "needs-key": "Listening for other hosts needs a key, and none was given.",
        "one-rank": "The job has only one rank, and the request compares several.",
        "recording": "The endpoint is a recording, and the request needs a living job, or one job.",
        "recorded-already": "Another recorder on this host writes into the folder.",
        "needs-package": "The request needs a package that is not installed.",
        "not-idle": "Peaks can only be measured on an idle machine.",
    }


class EndpointError(ProbeError):
    """The endpoint leads to no process, job or attached agent, or its agent cannot be connected to."""

    exit_status = 3
    codes: ClassVar = {
        "endpoint": "The endpoint names no process, or has no valid form.",
        "not-attached": "The process exists but has no agent.",
        "no-key": "An agent at a port needs a key, and none was given.",
        "key-refused": "The agent at that port does not accept this key.",
        "no-peers": "The agent of a job:// endpoint cannot tell where the other ranks are.",
        "no-such-host": "The host of a tcp:// endpoint has no address.",
        "unreachable": "Nothing accepts connections at that address.",
        "not-an-agent": "Something other than an agent listens at that port.",
        "several-jobs": "The endpoint or pid stands for several jobs.",
        "rank-twice": "Two of the agents have the same rank, so they belong to different jobs.",
        "no-ranks": "No process at or below the given one is a rank of a training job.",
        "open-files": "So many ranks need more open files than the limit allows.",
    }


class AttachError(ProbeError):
    """The target cannot be attached to; it is as it was before."""

    exit_status = 4
    codes: ClassVar = {
        "attach": "The attach failed; the message gives the reason.",
        **{code: message for code, (message, _) in REFUSALS.items()},
    }


class QueryError(ProbeError):
    """The SQL is wrong or would fetch too much."""

    exit_status = 5
    codes: ClassVar = {
        "query": "DuckDB rejected the SQL.",
        "unknown-table": "The SQL names a table that does not exist.",
        "unknown-column": "The SQL names a column that the table does not have.",
        "not-recorded": "The table shows a living job, and recordings do not have it.",
        "fleet-sql": "The SQL has something that Daft, on which fleet runs, lacks or answers otherwise.",
        "max-fetch": "The query would fetch more than --max-fetch allows.",
    }


class EvalError(ProbeError):
    """The snippet was not run, or was cancelled."""

    exit_status = 6
    codes: ClassVar = {
        "eval": "The snippet was not run.",
        "held": "Another snippet holds the job.",
        "no-step": "The job has no boundary between steps at which to run the snippet.",
        "no-counter": "The variable does not count steps: it is not a whole number, or it differs between ranks.",
        "eval-timeout": "The snippet reached its time-out and was cancelled, or could not be.",
        "eval-missed": "The ranks could not agree on a step at which to run the snippet.",
    }


class DetachError(ProbeError):
    """The agent cannot be taken out of a rank now; it is still attached."""

    exit_status = 11
    codes: ClassVar = {"still-held": "A snippet or capture still runs in a rank and does not end, so its agent stays."}


class SnippetFailed(ProbeError):
    """The snippet ran and raised."""

    exit_status = 1
    codes: ClassVar = {"snippet": "The snippet raised; its traceback is printed above."}


class AgentError(ProbeError):
    """An agent refused or failed a request, or answered in a way that the protocol forbids."""

    exit_status = 7
    codes: ClassVar = {
        "agent": "The agent refused or failed a request.",
        "protocol": "The agent speaks another version of the protocol.",
        "read-only": "The key only allows reading, and the request changes something.",
        "refused": "The agent serves only its own user, root and who attached.",
        "full": "So many clients are connected to the agent that it takes no more.",
        "profiled": "Another command is profiling the rank.",
        "no-function": "The rank has no such function, or none that can be traced.",
        "already-traced": "The function is traced already.",
        "trace-ended": "The function is called so often, or calls itself so deep, that the trace took itself off; or "
        "torch.compile began to compile.",
        "captured": "Another command is capturing the rank.",
        "no-capture": "torch's profiler cannot run in the rank: it has none, another one runs, or it failed.",
        "recorded": "Another command is recording the rank's allocator.",
        "no-history": "The history of the rank's allocator cannot be recorded: it uses no CUDA, or records it itself.",
        "no-frames": "The rank runs an interpreter whose stacks cannot be read from outside.",
        "no-room": "The job has no descriptor or no memory left for a connection.",
    }


class SilentError(ProbeError):
    """Too few answers in time, or too little recorded so far, for what was asked."""

    exit_status = 8
    codes: ClassVar = {
        "silent": "No rank answered in time.",
        "gone": "The target ended during the request.",
        "server-restarted": "The server beside the job ended during the request, and has started again.",
        "few-steps": "Too few steps have been recorded so far for the request.",
        "undecided": "What was seen so far leaves it open.",
        "no-profile": "No profile has been taken of what was asked for.",
        "no-change": "No eval since the attach has changed anything.",
        "not-in-effect": "The change has not taken effect yet: its loader has not begun another epoch.",
        "unseen": "What the request needs is not recorded for this job, or cannot be seen from here.",
    }


class OutputError(ProbeError):
    """The result could not be written."""

    exit_status = 9
    codes: ClassVar = {"output": "The result could not be written: the disk is full or broken."}


class HungError(ProbeError):
    """hang --watch found a stuck job."""

    exit_status = 10
    codes: ClassVar = {"hung": "hang --watch: nothing has moved for the given time."}


class FoundError(ProbeError):
    """why --fail-on found something as severe as that, or compare --fail-if a change beyond the limit."""

    exit_status = 11
    codes: ClassVar = {
        "found": "why --fail-on: a finding is as severe as that, or more.",
        "changed": "compare --fail-if: a change is beyond the limit.",
    }


class Interrupted(ProbeError):
    """The user pressed Ctrl-C."""

    exit_status = 130
    codes: ClassVar = {"interrupted": "Ctrl-C."}


# code -> (class, when).  docs/reference/errors.md is generated from this, a test compares.
CODES: dict[str, tuple[type[ProbeError], str]] = {
    code: (kind, when) for kind in ProbeError.__subclasses__() for code, when in kind.codes.items()
}
