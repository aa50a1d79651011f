"""Every way in which probe can fail: one tree, each class with a stable code, an exit status and a hint.

    ProbeError
    ├── UsageError            the command line or a call's arguments            2
    ├── EndpointError         no such process, job, or attached agent           3
    ├── AttachError           the target cannot be attached to                  4
    ├── QueryError            the SQL is wrong                                  5
    ├── EvalError             the snippet could not be run                      6
    ├── SnippetFailed         the snippet ran and raised                        1
    ├── AgentError            the agent refused or broke a request              7
    ├── SilentError           no answer in time                                 8
    ├── OutputError           the result could not be written                 9
    ├── HungError             --watch: the job does not go on              10
    └── Interrupted           Ctrl-C                                          130

`main()` alone prints and exits; everything else raises.  A message is one line: what happened, with the
value, and the next command (the hint).
"""

from __future__ import annotations


class ProbeError(Exception):
    """message: what happened, with the value; hint: the next command or remedy; code: stable, for scripts."""

    code = "probe"
    exit_status = 1

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
    code = "usage"
    exit_status = 2


class EndpointError(ProbeError):
    code = "endpoint"
    exit_status = 3


class AttachError(ProbeError):
    code = "attach"
    exit_status = 4


class QueryError(ProbeError):
    code = "query"
    exit_status = 5


class EvalError(ProbeError):
    code = "eval"
    exit_status = 6


class SnippetFailed(ProbeError):
    code = "snippet"
    exit_status = 1


class AgentError(ProbeError):
    code = "agent"
    exit_status = 7


class SilentError(ProbeError):
    code = "silent"
    exit_status = 8


class OutputError(ProbeError):
    code = "output"
    exit_status = 9


class HungError(ProbeError):
    code = "hung"
    exit_status = 10


class Interrupted(ProbeError):
    code = "interrupted"
    exit_status = 130


# code -> (class, when).  docs/reference/errors.md is generated from this, a test compares.
CODES: dict[str, tuple[type[ProbeError], str]] = {
    "usage": (UsageError, "The command line is not understood."),
    "endpoint": (EndpointError, "The endpoint names no process, or no form of endpoint that exists."),
    "not-attached": (EndpointError, "The process is there, but no agent is in it."),
    "no-key": (EndpointError, "An agent at a port asks for a key, and none was given."),
    "key-refused": (EndpointError, "The agent at that port does not take this key."),
    "no-peers": (EndpointError, "The agent of a job:// endpoint cannot tell where the other ranks are."),
    "no-such-host": (EndpointError, "The host of a tcp:// endpoint has no address."),
    "unreachable": (EndpointError, "Nothing takes connections at that place."),
    "not-an-agent": (EndpointError, "What listens at that port is no agent."),
    "needs-key": (UsageError, "Listening for other hosts asks for a key, and none was given."),
    "key-file": (UsageError, "The file with the key cannot be made, read or used."),
    "several-jobs": (EndpointError, "No endpoint was given and several jobs are attached."),
    "rank-twice": (EndpointError, "Of the agents named, two have the same rank: they belong to different jobs."),
    "no-ranks": (EndpointError, "Nothing below that process is a rank of a training job."),
    "open-files": (EndpointError, "So many ranks need more open files than are allowed."),
    "attach": (AttachError, "Attaching failed for a reason of its own, told in the message."),
    "agent-failed": (AttachError, "The agent raised while it started; it was taken out again."),
    "architecture": (AttachError, "This machine's processor is not known to attach."),
    "attach-running": (AttachError, "Another attach to this process has not ended."),
    "attach-timeout": (AttachError, "The agent did not start in time."),
    "call-failed": (AttachError, "A call in the target did not end; the thread was put back."),
    "capabilities": (AttachError, "The process has capabilities that you lack."),
    "free-threaded": (AttachError, "The process runs a Python without the GIL."),
    "gil-held": (AttachError, "A thread of the process holds the GIL in native code for too long."),
    "hidden": (AttachError, "The process is hidden by /proc's hidepid."),
    "is-thread": (AttachError, "The number is a thread, not a process."),
    "kernel-thread": (AttachError, "The process belongs to the kernel."),
    "main-thread-busy": (AttachError, "The main thread is needed and stays in native code."),
    "musl": (AttachError, "The process uses the C library musl."),
    "no-connection": (AttachError, "The process ran our code, which could not connect back."),
    "no-memory": (AttachError, "The process may not map another page."),
    "no-process": (AttachError, "There is no such process."),
    "no-pyzmq": (AttachError, "The process cannot import pyzmq, and this command's does not fit."),
    "no-rendezvous": (AttachError, "No directory is writable for the process and for you."),
    "no-safe-point": (AttachError, "No thread came to a point where it may be used."),
    "no-symbols": (AttachError, "The Python interpreter exports no symbols."),
    "no-thread": (AttachError, "The process may not create another thread."),
    "not-dumpable": (AttachError, "The process is not dumpable (setuid, setcap, prctl)."),
    "not-python": (AttachError, "The process is not CPython."),
    "old-kernel": (AttachError, "Linux is older than 5.3."),
    "old-python": (AttachError, "The process runs a Python older than 3.10."),
    "other-user": (AttachError, "The process belongs to another user."),
    "seccomp": (AttachError, "A seccomp filter around this command forbids ptrace."),
    "security-module": (AttachError, "SELinux, AppArmor or Landlock forbids tracing."),
    "shadow-stack": (AttachError, "The process runs with a user shadow stack."),
    "static": (AttachError, "The process is statically linked."),
    "stopped": (AttachError, "The process is stopped (SIGSTOP, Ctrl-Z)."),
    "cannot-listen": (AttachError, "The process may not listen at that address."),
    "other-key": (AttachError, "The agent listens already, with another key."),
    "port-in-use": (AttachError, "Something else listens at that port."),
    "symbols": (AttachError, "The process lacks a function that attaching needs."),
    "target-ended": (AttachError, "The process ended while it was being attached to."),
    "traced": (AttachError, "A debugger traces the process already."),
    "tracing-failed": (AttachError, "The process that traces failed; the target is as it was."),
    "user-namespace": (AttachError, "The process lives in another user namespace."),
    "yama": (AttachError, "kernel.yama.ptrace_scope allows parents or root only."),
    "yama-off": (AttachError, "kernel.yama.ptrace_scope is 3: nobody may attach."),
    "zombie": (AttachError, "The process has ended."),
    "query": (QueryError, "DuckDB refused the SQL."),
    "unknown-table": (QueryError, "The SQL names a table that does not exist."),
    "max-fetch": (QueryError, "The query would fetch more than --max-fetch allows."),
    "unknown-column": (QueryError, "The SQL names a column that the table does not have."),
    "eval": (EvalError, "The snippet was not run."),
    "held": (EvalError, "Another snippet holds the job."),
    "no-step": (EvalError, "The job has no boundary between steps to run the snippet at."),
    "one-rank": (UsageError, "The job has one rank, and what was asked is about several."),
    "few-steps": (SilentError, "Too few steps have been recorded so far for what was asked."),
    "eval-timeout": (EvalError, "The snippet ran into its time-out and was cancelled, or could not be."),
    "eval-missed": (EvalError, "The ranks could not agree on a step to run the snippet at."),
    "snippet": (SnippetFailed, "The snippet raised; its traceback stands above."),
    "agent": (AgentError, "The agent refused or failed a request."),
    "protocol": (AgentError, "The agent speaks another version of the protocol."),
    "read-only": (AgentError, "The key is one for reading, and what was asked changes something."),
    "silent": (SilentError, "No rank answered in time."),
    "gone": (SilentError, "The target ended while it was asked."),
    "output": (OutputError, "The result could not be written: no room, or a broken disk."),
    "hung": (HungError, "hang --watch: nothing has moved for so long."),
    "interrupted": (Interrupted, "Ctrl-C."),
}
