"""What is known of each c10d operation: which of its tensors make its size, and what its schema tells.

Read by the tap of collectives at install.  The one invariant: sizes are those of nccl-tests, so that
bytes / duration is its algbw for every operation, and every rank of an operation tells the same size:

    all_reduce, reduce, broadcast      the buffer: all tensors of the call
    all_gather, gather                 what the receiver ends up with: this rank's input × size of the group
    reduce_scatter, all_to_all         this rank's whole input
    scatter                            what the root hands out: this rank's output × size of the group
    send, recv                         the tensors sent or received
    barrier                            0

Where ranks contribute unequal parts (all_to_all with splits) each rank tells its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# operation -> (which argument holds the tensors that count, whether they are 1/size of the whole)
SIZED: dict[str, tuple[int, bool]] = {
    "_allgather_base_": (1, True),
    "_reduce_scatter_base_": (1, False),
    "allgather_": (1, True),
    "allgather_coalesced_": (1, True),
    "allgather_into_tensor_coalesced_": (1, True),
    "allreduce_": (0, False),
    "allreduce_coalesced_": (0, False),
    "alltoall_": (1, False),
    "alltoall_base_": (1, False),
    "broadcast_": (0, False),
    "gather_": (1, True),
    "recv_": (0, False),
    "recv_any_source_": (0, False),
    "reduce_": (0, False),
    "reduce_scatter_": (1, False),
    "reduce_scatter_tensor_coalesced_": (1, False),
    "scatter_": (0, True),
    "send": (0, False),
}
SIZELESS = {"barrier", "monitored_barrier_"}
_POINT_TO_POINT = {"send", "recv_", "recv_any_source_"}
# gloo counts these too, but only on the ranks they touch, and monitored_barrier more often on rank 0;
# NCCL counts point-to-point apart.  So their number means nothing on another rank.
_UNNUMBERED = _POINT_TO_POINT | {"monitored_barrier_"}
_PEERS = ("root_rank", "dst", "src")


@dataclass(frozen=True)
class Operation:
    """One c10d operation; *_at are positions of its arguments, None where it has none."""

    name: str  # allreduce_
    group_at: int
    async_at: int | None
    peer_at: int | None
    tensors_at: int
    sizeless: bool  # its tensor only carries the device
    a_share: bool  # its tensors are 1/size of the whole
    returns: int  # how many things it returns; the last is its Work
    numbered: bool  # the group's sequence number after it is the same on all ranks
    point_to_point: bool


def described(schema: Any) -> Operation | None:
    """What an operation's schema tells; None where no process group takes part.  One unknown here counts its
    first argument."""
    names = [argument.name for argument in schema.arguments]
    if "process_group" not in names:
        return None
    name = schema.name.partition("::")[2]
    tensors_at, a_share = SIZED.get(name, (0, False))
    return Operation(
        name=name,
        group_at=names.index("process_group"),
        async_at=names.index("async_op") if "async_op" in names else None,
        peer_at=next((names.index(each) for each in _PEERS if each in names), None),
        tensors_at=tensors_at,
        sizeless=name in SIZELESS,
        a_share=a_share,
        returns=len(schema.returns),
        numbered=name not in _UNNUMBERED,
        point_to_point=name in _POINT_TO_POINT,
    )


def flat(argument: Any) -> list[Any]:
    """The tensors of a Tensor, Tensor[] or Tensor[][] argument."""
    if not isinstance(argument, list):
        return [argument]
    if argument and isinstance(argument[0], list):
        return [tensor for each in argument for tensor in each]
    return argument
