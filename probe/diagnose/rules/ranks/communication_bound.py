"""Steps that wait for collectives that all ranks have reached."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ....errors import SilentError
from ...figures import figure, ms, pct
from ...measures.communication import OPERATIONS, TAKES, Communication, communication
from ...measures.places import places
from ...rule import Finding, Rule
from ...watched import Watched
from .no_sync_missing import unneeded

LEAST = 0.03  # of the step: below that nobody would change what is sent
_USUAL = 0.2  # of the step: with several ranks, less is no fault
_FEW = 8  # operations a step: with fewer, it is the bytes that cost, not their number
_BUFFERS = ("ddp", "broadcast")
_DDP = (
    "[name for name, value in {**globals(), **locals()}.items() if type(value).__name__ == 'DistributedDataParallel']"
)
_REMEDIES = {
    "ddp": "fewer bytes (ddp_comm_hooks.default_hooks.bf16_compress_hook), or more samples between optimizer steps",
    "fsdp": "fewer bytes (param_dtype, reduce_dtype of its mixed precision), or more samples between optimizer steps",
    "user": "fewer bytes, such as tensors of torch.bfloat16, or less often",
    "many of user": "one operation for all tensors, or DistributedDataParallel, which sends during the backward pass",
}
_OF_OTHERS = "fewer bytes, or fewer and larger operations"  # of another part of torch, which decides how it sends
_OF_BARRIERS = "fewer barriers: an all_reduce waits for all ranks by itself"


def _find(watched: Watched) -> Iterator[Finding]:
    costs = communication(watched)
    seconds = costs.seconds * (1 - unneeded(watched))
    share = seconds / watched.step_s
    if share < LEAST:
        return
    first = watched.rows(OPERATIONS)[0]
    size = f" of {figure(first['mb'])} MB" if first["mb"] else ""  # a barrier has none
    sent = f"{first['operation_type']}{size} a step ({first['backend']})"
    found = Finding(
        f"Communication-bound: {pct(share)} of each step goes into collectives that all ranks have reached.",
        why=_why(watched, costs), where=_where(watched, first), remedy=_remedy(first),
        now=f"{figure(first['a_step'])} {sent}", seconds=seconds, share=share, confidence=costs.blocked.sure(LEAST),
        severity="hint" if share < _USUAL else None,
    )  # fmt: skip
    yield _of_buffers(watched, found, first) if (first["source"], first["operation_type"]) == _BUFFERS else found


def _of_buffers(watched: Watched, found: Finding, first: dict[str, Any]) -> Finding:
    """DDP need not send the first rank's buffers to the others before each forward pass."""
    names = re.findall(r"'(\w+)'", watched.read(_DDP) or "")
    whole = sum(row["ms"] or 0.0 for row in watched.rows(OPERATIONS))
    live = f'probe {watched.endpoint} eval "{names[0]}.broadcast_buffers = False"' if names else ""
    return replace(
        found,
        remedy=live or "DistributedDataParallel(…, broadcast_buffers=False)",
        effect="takes effect with the next step; each rank then has buffers (BatchNorm's statistics) of its own",
        saves=(found.seconds or 0.0) * (first["ms"] or 0.0) / whole if whole else None, assumes="without them",
    )  # fmt: skip


def _why(watched: Watched, costs: Communication) -> list[str]:
    blocked, dearest = costs.blocked, costs.types[0]
    then, before = ms(dearest["ms"] / 1e3), ms(dearest["wait_ms"] / 1e3)
    return [
        f"comm {ms(blocked.seconds)} ({ms(blocked.low)} to {ms(blocked.high)}) of {ms(watched.step_s)}, "
        f"{pct(1 - costs.part)} of the operations' time before the last rank has arrived",
        f"each {dearest['operation_type']} takes {then} from then on, and {before} until then",
    ]


def _where(watched: Watched, first: dict[str, Any]) -> str:
    """The function that issues what the job itself issues."""
    if first["source"] != "user":
        return ""
    try:
        place = places(watched, "phase = 'comm'").deepest()
    except SilentError:
        return ""
    return f"{pct(place.share)} of it is in {place}" if place else ""


def _remedy(first: dict[str, Any]) -> str:
    if first["operation_type"] == "barrier":
        return _OF_BARRIERS
    is_many = first["source"] == "user" and first["a_step"] >= _FEW
    return _REMEDIES.get("many of user" if is_many else first["source"], _OF_OTHERS)


COMMUNICATION_BOUND: Rule[Watched] = Rule(
    "communication-bound",
    "Steps wait for collectives that all ranks have reached.",
    _find,
    needs=("python.step_trace", "python.nccl_trace", "probe.collectives", "python.torch_trace", "python.profile"),
    of=("gpu-idle",),
    sql=TAKES,
    asks=(_DDP,),
)
