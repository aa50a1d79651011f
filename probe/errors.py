"""Every way in which probe can fail: one tree, each class with its stable codes, an exit status and a hint.

    ProbeError
    ├── UsageError            the command line or the arguments of a call are wrong        2
    ├── EndpointError         no such process, job or attached agent                       3
    ├── AttachError           the target cannot be attached to                             4
    ├── QueryError            the SQL is wrong                                             5
    ├── EvalError             the snippet could not be run                                 6
    ├── SnippetFailed         the snippet ran and raised                                   1
    ├── AgentError            the agent refused or failed a request                        7
    ├── SilentError           no answer in time                                            8
    ├── OutputError           the result could not be written                              9
    ├── HungError             --watch: the job is stuck                                   10
    └── Interrupted           Ctrl-C                                                     130

Only `main()` prints and exits; everything else raises.  A message is one line: what happened, with the value, and the
next command (the hint).
"""

from __future__ import annotations

from typing import ClassVar


class ProbeError(Exception):
    """message: what happened, with the value; hint: the next command or remedy; code: stable, for scripts.

    Example: `except probe.ProbeError as error: print(error.code, error.message, error.hint)`

    A class declares its `exit_status`, its `codes` with the sentence that documents each, and as `code` the one that an
    error has if none is given.
    """

    exit_status = 1
    code = "probe"
    codes: ClassVar[dict[str, str]] = {}

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
    code = "usage"
    codes: ClassVar = {
        "usage": "The command line cannot be understood.",
        "key-file": "The key file cannot be created, read or used.",
        "needs-key": "Listening for other hosts needs a key, and none was given.",
        "one-rank": "The job has only one rank, and the request compares several.",
    }


class EndpointError(ProbeError):
    """The endpoint leads to no process, job or attached agent, or its agent cannot be connected to."""

    exit_status = 3
    code = "endpoint"
    codes: ClassVar = {
        "endpoint": "The endpoint names no process, or has no valid form.",
        "not-attached": "The process exists but has no agent.",
        "no-key": "An agent at a port needs a key, and none was given.",
        "key-refused": "The agent at that port does not accept this key.",
        "no-peers": "The agent of a job:// endpoint cannot tell where the other ranks are.",
        "no-such-host": "The host of a tcp:// endpoint has no address.",
        "unreachable": "Nothing accepts connections at that address.",
        "not-an-agent": "Something other than an agent listens at that port.",
        "several-jobs": "No endpoint was given, and several jobs are attached.",
        "rank-twice": "Two of the agents have the same rank, so they belong to different jobs.",
        "no-ranks": "No process at or below the given one is a rank of a training job.",
        "open-files": "So many ranks need more open files than the limit allows.",
    }


class AttachError(ProbeError):
    """The target cannot be attached to; it is as it was before.  Texts: probe/attach/refusals.py."""

    exit_status = 4
    code = "attach"
    codes: ClassVar = {
        "attach": "The attach failed; the message gives the reason.",
        "agent-failed": "The agent failed while it started; it was taken out again.",
        "architecture": "Attaching does not support this machine's processor.",
        "attach-running": "Another attach to this process is still running.",
        "attach-timeout": "The agent did not start in time.",
        "call-failed": "A call in the target did not return; the thread was put back.",
        "cannot-listen": "The process may not listen at that address.",
        "capabilities": "The process has capabilities that you lack.",
        "free-threaded": "The process runs a Python without the GIL.",
        "gil-held": "A thread of the process holds the GIL in native code for too long.",
        "hidden": "The process is hidden by /proc's hidepid.",
        "is-thread": "The number is a thread's, not a process's.",
        "kernel-thread": "The process is a kernel thread.",
        "main-thread-busy": "The main thread is needed but stays in native code.",
        "musl": "The process uses the C library musl.",
        "no-connection": "The process ran our code, which could not connect back.",
        "no-memory": "The process may not map another page.",
        "no-process": "There is no such process.",
        "no-pyzmq": "The process cannot import pyzmq, and this command's own does not fit.",
        "no-rendezvous": "No directory is writable for both the process and you.",
        "no-safe-point": "No thread reached a point where it can be used safely.",
        "no-symbols": "The Python interpreter exports no symbols.",
        "no-thread": "The process may not create another thread.",
        "not-dumpable": "The process is not dumpable (setuid, setcap, prctl).",
        "not-python": "The process is not CPython.",
        "old-kernel": "Linux is older than 5.3.",
        "old-python": "The process runs a Python older than 3.10.",
        "other-key": "The agent already listens, with another key.",
        "other-user": "The process belongs to another user.",
        "port-in-use": "Something else listens at that port.",
        "seccomp": "A seccomp filter on this command forbids ptrace.",
        "security-module": "SELinux, AppArmor or Landlock forbids tracing.",
        "shadow-stack": "The process runs with a user shadow stack.",
        "static": "The process is statically linked.",
        "stopped": "The process is stopped (SIGSTOP, Ctrl-Z).",
        "symbols": "The process lacks a function that attaching needs.",
        "target-ended": "The process ended during the attach.",
        "traced": "A debugger is tracing the process.",
        "tracing-failed": "The process that does the tracing failed; the target is as it was.",
        "user-namespace": "The process is in another user namespace.",
        "yama": "kernel.yama.ptrace_scope allows only ancestors or root to attach.",
        "yama-off": "kernel.yama.ptrace_scope is 3: nobody may attach.",
        "zombie": "The process has ended.",
    }


class QueryError(ProbeError):
    """The SQL is wrong or would fetch too much."""

    exit_status = 5
    code = "query"
    codes: ClassVar = {
        "query": "DuckDB rejected the SQL.",
        "unknown-table": "The SQL names a table that does not exist.",
        "unknown-column": "The SQL names a column that the table does not have.",
        "max-fetch": "The query would fetch more than --max-fetch allows.",
    }


class EvalError(ProbeError):
    """The snippet was not run, or was cancelled."""

    exit_status = 6
    code = "eval"
    codes: ClassVar = {
        "eval": "The snippet was not run.",
        "held": "Another snippet holds the job.",
        "no-step": "The job has no boundary between steps at which to run the snippet.",
        "eval-timeout": "The snippet reached its time-out and was cancelled, or could not be.",
        "eval-missed": "The ranks could not agree on a step at which to run the snippet.",
    }


class SnippetFailed(ProbeError):
    """The snippet ran and raised."""

    exit_status = 1
    code = "snippet"
    codes: ClassVar = {"snippet": "The snippet raised; its traceback is printed above."}


class AgentError(ProbeError):
    """An agent refused or failed a request, or answered in a way that the protocol forbids."""

    exit_status = 7
    code = "agent"
    codes: ClassVar = {
        "agent": "The agent refused or failed a request.",
        "protocol": "The agent speaks another version of the protocol.",
        "read-only": "The key only allows reading, and the request changes something.",
    }


class SilentError(ProbeError):
    """Too few answers in time, or too little recorded so far, for what was asked."""

    exit_status = 8
    code = "silent"
    codes: ClassVar = {
        "silent": "No rank answered in time.",
        "gone": "The target ended during the request.",
        "few-steps": "Too few steps have been recorded so far for the request.",
    }


class OutputError(ProbeError):
    """The result could not be written."""

    exit_status = 9
    code = "output"
    codes: ClassVar = {"output": "The result could not be written: the disk is full or broken."}


class HungError(ProbeError):
    """hang --watch found a stuck job."""

    exit_status = 10
    code = "hung"
    codes: ClassVar = {"hung": "hang --watch: nothing has moved for the given time."}


class Interrupted(ProbeError):
    """The user pressed Ctrl-C."""

    exit_status = 130
    code = "interrupted"
    codes: ClassVar = {"interrupted": "Ctrl-C."}


# code -> (class, when).  docs/reference/errors.md is generated from this, a test compares.
CODES: dict[str, tuple[type[ProbeError], str]] = {
    code: (kind, when) for kind in ProbeError.__subclasses__() for code, when in kind.codes.items()
}
