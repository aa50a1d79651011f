"""torch's own Flight Recorders: the last collectives of this process, those from before the attach included.

Asked on the agent's thread; a dump holds the GIL for some 40 ms with 2,000 entries, so never as a poll, and of a job
that goes on nobody asks for it.  Where CUDA is in use nobody may, for a dump asks events and makes contexts.  The one
invariant: a recorder is read and never changed, and no process group is held: one whose last reference ended here would
be shut down on this thread.
"""

from __future__ import annotations

import sys
from typing import Any

from ..untested_devices import why_off

_DUMPS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")  # gloo's recorder; NCCL's own, of builds that have it


def dumps() -> tuple[list[str], str]:
    """(each recorder as torch writes it in JSON, ""), or ([], why there is none)."""
    c10d: Any = sys.modules.get("torch._C._distributed_c10d")
    if c10d is None:
        return [], "torch.distributed is not there"
    if off := why_off():
        return [], off
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
    named, members = _by_id(distributed._world.pg_names), _by_id(distributed._world.pg_group_ranks)
    return {str(name): _in_order(members.get(group, {})) for group, name in named.items()}


def _by_id(of_groups: dict[Any, Any]) -> dict[int, Any]:
    """The same with the id of each group in its place; C throughout, so that no other thread runs meanwhile."""
    return dict(zip(map(id, of_groups), of_groups.values(), strict=True))


def _in_order(members: dict[int, int]) -> list[int]:
    return sorted(members, key=members.__getitem__)
