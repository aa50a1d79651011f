"""torch's own Flight Recorders: the last collectives of this process, those from before the attach included.

Asked on the agent's thread; a dump holds the GIL for some 40 ms with 2,000 entries, so never as a poll, and of a job
that goes on nobody asks for it.  The one invariant: a recorder is read and never changed.
"""

from __future__ import annotations

import sys
from typing import Any

from .groups import ranks_of

_DUMPS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")  # gloo's recorder; NCCL's own, of builds that have it


def dumps() -> tuple[list[str], str]:
    """(each recorder as torch writes it in JSON, ""), or ([], why there is none)."""
    c10d: Any = sys.modules.get("torch._C._distributed_c10d")
    if c10d is None:
        return [], "torch.distributed is not there"
    texts, why_not = [], "this torch has no Flight Recorder in JSON"
    for dump in [getattr(c10d, name) for name in _DUMPS if hasattr(c10d, name)]:
        try:
            texts.append(_text(dump()))
        except Exception as error:  # whatever torch says of one, the other and the rest of the evidence are of use
            why_not = repr(error)
    return texts, "" if texts else why_not


def _text(told: str | bytes) -> str:
    return told if isinstance(told, str) else told.decode()


def groups() -> dict[str, list[int]]:
    """Name of each process group of this process -> its members, as ranks of the job."""
    distributed: Any = sys.modules.get("torch.distributed.distributed_c10d")
    if distributed is None:
        return {}
    named = dict(distributed._world.pg_names)
    return {str(name): list(ranks_of(group) or ()) for group, name in named.items()}
