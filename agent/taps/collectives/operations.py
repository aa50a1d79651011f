"""The c10d operations: what an operation's schema says, and the size of its tensors and a name for them.

Invariant: no torch-function mode or tensor subclass of the job notices that we look at a tensor.  Sizes are those of
nccl-tests, so bytes / duration is its algbw for every operation, and every rank of an operation reports the same size:

    all_reduce, reduce, broadcast      the buffer: all tensors of the call
    all_gather, gather                 what the receiver gets in total: this rank's input × size of the group
    reduce_scatter, all_to_all         this rank's whole input
    scatter                            what the root sends in total: this rank's output × size of the group
    send, recv                         the tensors sent or received
    barrier                            0

Where ranks contribute unequal parts (all_to_all with splits), each rank reports its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

# (position of the argument whose tensors count, whether they are 1/size of the whole) -> operations
_OPERATIONS = {
    (0, False): "allreduce_ allreduce_coalesced_ broadcast_ recv_ recv_any_source_ reduce_ send",
    (0, True): "scatter_",
    (1, False): "_reduce_scatter_base_ alltoall_ alltoall_base_ reduce_scatter_ reduce_scatter_tensor_coalesced_",
    (1, True): "_allgather_base_ allgather_ allgather_coalesced_ allgather_into_tensor_coalesced_ gather_",
}
SIZED = {name: sized for sized, names in _OPERATIONS.items() for name in names.split()}
SIZELESS = {"barrier", "monitored_barrier_"}
_POINT_TO_POINT = {"send", "recv_", "recv_any_source_"}
# gloo numbers these too, but only on the ranks that take part, and counts monitored_barrier more often on rank 0;
# NCCL numbers point-to-point operations separately.  So their numbers mean nothing on another rank.
_UNNUMBERED = _POINT_TO_POINT | {"monitored_barrier_"}
_PEERS = ("root_rank", "dst", "src")
_KINDS = 4096  # (dtype, shape) pairs remembered


@dataclass(frozen=True)
class Operation:
    """One c10d operation; each *_at is the position of an argument, None if the operation has no such argument."""

    name: str  # allreduce_
    group_at: int
    async_at: int | None
    peer_at: int | None
    tag_at: int | None
    tensors_at: int
    sizeless: bool  # its tensor only says which device to use
    a_share: bool  # its tensors are 1/size of the whole
    returns: int  # number of return values; the last is its Work
    numbered: bool  # after it, the group's sequence number is the same on all ranks
    point_to_point: bool


def described(schema: Any) -> Operation | None:
    """The operation with this schema; None if it takes no process group.  The size of an operation that SIZED lacks
    is that of its first argument."""
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
        tag_at=names.index("tag") if "tag" in names else None,
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


class Tensors:
    """size_of() runs on any thread and takes 300 ns for one plain tensor of a known shape."""

    def __init__(self, string: Callable[[str], int], torch: Any) -> None:
        self._plain = torch.Tensor
        self._sparse = torch.sparse_coo
        self._unseen = torch._C.DisableTorchFunction
        # before torch 2.2 there is no way to ask whether a mode is on
        self._modes: Callable[[], int] = getattr(torch._C, "_len_torch_function_stack", lambda: 1)
        self._name = lru_cache(_KINDS)(partial(_name, string))

    def size_of(self, tensors: list[Any]) -> tuple[Any, int]:
        """(bytes, log id of "dtype shape" of the first tensor with the number of others); bytes may be symbolic."""
        if len(tensors) == 1 and type(tensors[0]) is self._plain and not self._modes():
            return self._size_of(tensors)
        with self._unseen():
            return self._size_of(tensors) if tensors else (0, 0)

    def _size_of(self, tensors: list[Any]) -> tuple[Any, int]:
        first = tensors[0]
        try:
            size = first.nbytes if len(tensors) == 1 else sum(tensor.nbytes for tensor in tensors)
        except RuntimeError:  # only dense tensors have nbytes
            sparse = [tensor for tensor in tensors if tensor.layout is self._sparse]
            size = sum(int(tensor._indices().nbytes + tensor._values().nbytes) for tensor in sparse)
        if type(size) is not int:
            return size, 0
        return size, self._name(first.dtype, first.shape, len(tensors))


def _name(string: Callable[[str], int], dtype: Any, shape: Any, count: int) -> int:
    more = f" +{count - 1}" if count > 1 else ""
    return string(f"{str(dtype).removeprefix('torch.')} {list(shape)}{more}")
