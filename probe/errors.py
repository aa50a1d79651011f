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


class Interrupted(ProbeError):
    code = "interrupted"
    exit_status = 130


# code -> (class, when).  docs/reference/errors.md is generated from this, a test compares.
CODES: dict[str, tuple[type[ProbeError], str]] = {
    "usage": (UsageError, "The command line is not understood."),
    "endpoint": (EndpointError, "The endpoint names no process, or no form of endpoint that exists."),
    "not-attached": (EndpointError, "The process is there, but no agent is in it."),
    "several-jobs": (EndpointError, "No endpoint was given and several jobs are attached."),
    "no-ranks": (EndpointError, "Nothing below that process is a rank of a training job."),
    "attach": (AttachError, "Attaching failed for a reason of its own, told in the message."),
    "query": (QueryError, "DuckDB refused the SQL."),
    "unknown-table": (QueryError, "The SQL names a table that does not exist."),
    "unknown-column": (QueryError, "The SQL names a column that the table does not have."),
    "eval": (EvalError, "The snippet was not run."),
    "no-step": (EvalError, "The job has no boundary between steps to run the snippet at."),
    "eval-timeout": (EvalError, "The snippet ran into its time-out and was cancelled, or could not be."),
    "eval-missed": (EvalError, "The ranks could not agree on a step to run the snippet at."),
    "snippet": (SnippetFailed, "The snippet raised; its traceback stands above."),
    "agent": (AgentError, "The agent refused or failed a request."),
    "protocol": (AgentError, "The agent speaks another version of the protocol."),
    "silent": (SilentError, "No rank answered in time."),
    "gone": (SilentError, "The target ended while it was asked."),
    "interrupted": (Interrupted, "Ctrl-C."),
}
