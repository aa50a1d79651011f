"""torch's own Flight Recorders: the last collectives of this process, including those from before the attach.

The agent's thread reads them.  A dump of 2,000 entries holds the GIL for some 40 ms, so recorders are never polled and
no dump is taken of a job that makes progress.  Where devices are left alone there is none: NCCL's queries events.
Invariant: recorders are read and never changed, and no process group is held: a group whose last reference ended here
would be shut down on this thread.
"""

from __future__ import annotations

import sys
from typing import Any

from ...fault import in_words
from ..device_policy import why_off

_DUMPS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")  # gloo's recorder; NCCL's own, in builds that have it


def dumps() -> tuple[list[str], str]:
    """(the JSON that torch writes for each recorder, ""), or ([], the reason why there is none)."""
    c10d: Any = sys.modules.get("torch._C._distributed_c10d")
    if c10d is None:
        return [], "torch.distributed is not there"
    if off := why_off():
        return [], off
    texts, why_not = [], "this torch has no Flight Recorder in JSON"
    for dump in [getattr(c10d, name) for name in _DUMPS if hasattr(c10d, name)]:
        try:
            text = dump()
            texts.append(text if isinstance(text, str) else text.decode())
        except Exception as error:  # whatever one recorder raises, the other one and all other evidence stay useful
            why_not = in_words(error)
    return texts, "" if texts else why_not


def groups() -> dict[str, list[int]]:
    """Name of each process group of this process -> its members as ranks of the job, in the group's order."""
    distributed: Any = sys.modules.get("torch.distributed.distributed_c10d")
    if distributed is None:
        return {}
    names, members = _by_id(distributed._world.pg_names), _by_id(distributed._world.pg_group_ranks)
    return {str(name): sorted(ranks := members.get(group, {}), key=ranks.__getitem__) for group, name in names.items()}


def _by_id(by_group: dict[Any, Any]) -> dict[int, Any]:
    """The same dict keyed by the id of each group.  All of it runs in C, so no other thread runs in between."""
    return dict(zip(map(id, by_group), by_group.values(), strict=True))
