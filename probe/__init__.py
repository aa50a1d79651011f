"""Attach to a running, unmodified PyTorch job and query it in SQL or Python.

Example:
    import probe

    with probe.connect("4242") as job:
        print(job.query("SELECT * FROM python.step_trace").to_pylist())
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .version import __version__

if TYPE_CHECKING:
    from .attach import Attached, start
    from .capture.capture import RankCapture
    from .client.agent_requests import Unreached
    from .client.traces import RankTrace
    from .comparing import compare
    from .connection import Connection, connect
    from .diagnose.change.report import Change
    from .diagnose.compare.report import Compared
    from .diagnose.diagnosis import Cause, Diagnosis
    from .diagnose.hang.report import Report
    from .diagnose.lateness.stragglers import Stragglers
    from .errors import (
        AgentError,
        AttachError,
        DetachError,
        EndpointError,
        EvalError,
        FoundError,
        HungError,
        Interrupted,
        OutputError,
        ProbeError,
        QueryError,
        SilentError,
        SnippetFailed,
        UsageError,
    )  # fmt: skip
    from .evals.snippet import EvalResult, RankResult
    from .host.facts import Facts
    from .host.native_frames import NativeFrame
    from .memory.histories import RankHistory
    from .memory.rank_memory import RankMemory
    from .profile.launch import RankProfile
    from .query.result import Cost, Coverage, Fetch, Note, Result
    from .snapshot.snapshot import Snapshot

__all__ = [
    "AgentError", "AttachError", "Attached", "Cause", "Change", "Compared", "Connection", "Cost", "Coverage",
    "DetachError", "Diagnosis", "EndpointError", "EvalError", "EvalResult", "Facts", "Fetch", "FoundError",
    "HungError", "Interrupted", "NativeFrame", "Note", "OutputError", "ProbeError", "QueryError", "RankCapture",
    "RankHistory", "RankMemory", "RankProfile", "RankResult", "RankTrace", "Report", "Result", "SilentError",
    "Snapshot", "SnippetFailed", "Stragglers", "Unreached", "UsageError", "__version__", "compare", "connect",
    "start",
]  # fmt: skip
_MODULES = {
    **dict.fromkeys(("Connection", "connect"), "connection"),
    **dict.fromkeys(("EvalResult", "RankResult"), "evals.snippet"),
    **dict.fromkeys(("Cost", "Coverage", "Fetch", "Note", "Result"), "query.result"),
    **dict.fromkeys(("Attached", "start"), "attach"),
    "Facts": "host.facts",
    "NativeFrame": "host.native_frames",
    "RankHistory": "memory.histories",
    "RankMemory": "memory.rank_memory",
    "RankCapture": "capture.capture",
    "RankProfile": "profile.launch",
    "RankTrace": "client.traces",
    **dict.fromkeys(("Cause", "Diagnosis"), "diagnose.diagnosis"),
    "Change": "diagnose.change.report",
    "Compared": "diagnose.compare.report",
    "compare": "comparing",
    "Report": "diagnose.hang.report",
    "Snapshot": "snapshot.snapshot",
    "Stragglers": "diagnose.lateness.stragglers",
    "Unreached": "client.agent_requests",
}


def __getattr__(name: str) -> Any:
    """Every name on first use: `import probe` alone loads neither zmq nor anything heavier."""
    if name in __all__:
        return getattr(import_module(f".{_MODULES.get(name, 'errors')}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
