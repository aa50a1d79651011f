"""torch's own Flight Recorder: the last collectives of this process, those from before the attach included.

Asked by a reader on a hang, on the agent's thread; it holds the GIL for some 40 ms with 2,000 entries, so never as a
poll.  The one invariant: the recorder is read and never changed.
"""

from __future__ import annotations

import sys
from typing import Any

from .taps.collective_groups import ranks_of


def flight_entries() -> tuple[str, str]:
    """(JSON as torch writes it, ""), or ("", why there is none)."""
    c10d: Any = sys.modules.get("torch._C._distributed_c10d")
    if c10d is None:
        return "", "torch.distributed is not there"
    dump = getattr(c10d, "_dump_fr_trace_json", None) or getattr(c10d, "_dump_nccl_trace_json", None)
    if dump is None:
        return "", "this torch has no Flight Recorder in JSON"
    try:
        told = dump()
    except Exception as error:  # whatever torch says, the rest of the evidence is of use
        return "", repr(error)
    return (told if isinstance(told, str) else bytes(told).decode()), ""


def groups() -> dict[str, list[int]]:
    """Name of each process group of this process -> its members, as ranks of the job."""
    distributed: Any = sys.modules.get("torch.distributed.distributed_c10d")
    if distributed is None:
        return {}
    named = dict(distributed._world.pg_names)
    return {str(name): list(ranks_of(group) or ()) for group, name in named.items()}
