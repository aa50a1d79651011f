"""Every c10d operation of this process, by a kernel of ours under the dispatcher key BackendSelect.

That is the one place which all of them pass: DDP's C++ reducer, aliased functions, functional and compiled
collectives, batches of send and recv.  The one invariant: what is issued, returned, raised and waited
for is what it would be without us; a failure of our own ends the recording, never the training.

A row is written before its operation is issued, so that one which blocks there is seen too, and patched
in place: issued_ns and group_seq on return, done_ns when it completed (collective_works.py).  On a device,
done_ns - start_ns is the time that the device took, from the backend's own events.
"""

from __future__ import annotations

import sys
from _thread import get_ident
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from ...streams import ASYNC_OP, LOG_GROUP
from ..alone import alone
from ..log import Log
from ..rows import Stream
from .collective_groups import Group, Groups, ranks_of
from .collective_ops import Operation, described, flat
from .collective_works import Row, Works
from .one_sided import Running, refusal

_KEY = "BackendSelect"  # above the backends, below autograd and Python modes
_TENSORS = 4096  # kinds of tensors remembered; a job with ever new shapes starts over


class Collectives:
    """install() and remove() at a boundary on the training thread; all else from any thread."""

    def __init__(self, stream: Stream, log: Log, current_eval: Callable[[int], Running | None]) -> None:
        self.installed = False
        self.why_not = ""
        self._stream, self._log = stream, log
        self._current_eval: Callable[[int], Running | None] = current_eval
        self._recording = False
        self._works = Works(self._is_capturing)
        self._groups = Groups(self._log_group)
        self._group_ids: dict[str, int] = {}
        self._tensors: dict[Any, int] = {}
        self._futureless: set[str] = set()
        self._library: Any = None
        self._codes: set[Any] = set()
        self._torch: Any = None

    def install(self) -> None:
        """Put the kernels in, about 5 ms; why_not tells if that cannot be.  Once, then pass_through and resume."""
        if self.installed or self.why_not:
            return
        self._torch = sys.modules.get("torch")
        if self._torch is None or not hasattr(self._torch._C, "_distributed_c10d"):
            self.why_not = "torch.distributed is not there"
            return
        try:
            self._register()
        except Exception as error:
            self.remove()
            self.why_not = repr(error)
            return
        self.installed = self._recording = True

    def remove(self) -> bool:
        """Take the kernels out; False if a thread stands in one of them: try again at a later boundary."""
        self._recording = False
        if self._library is not None and not alone(self._library._destroy, self._codes.__contains__):
            return False
        self._library = None
        self._works.close()
        self.installed = False
        return True

    def pass_through(self) -> None:
        """Record nothing that is issued from now on; what is in flight is still seen to its end."""
        self._recording = False

    def resume(self) -> None:
        self._recording = self.installed and not self.why_not

    def drain(self) -> None:
        """Ask the operations that cannot tell by themselves whether they are done; the agent's thread, at 1 Hz."""
        self._works.poll()

    def forked(self) -> None:
        """In a forked child: nothing is recorded, refused or asked any more."""
        self._recording = self.installed = False
        self._current_eval = _no_eval
        self._works.forget()

    @property
    def _c10d(self) -> Any:
        return self._torch._C._distributed_c10d

    def _trouble(self, error: BaseException) -> None:
        self._recording = False
        self.why_not = repr(error)

    def _register(self) -> None:
        torch = self._torch
        library = self._library = torch.library.Library("c10d", "IMPL")
        below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
        for full_name in torch._C._dispatch_get_all_op_names():
            space, _, name = full_name.partition("::")
            if space != "c10d":
                continue
            base, _, overload = name.partition(".")
            op = getattr(getattr(torch.ops.c10d, base), overload or "default")
            operation = described(op._schema)
            if operation is not None:
                kernel = self._kernel(operation, op.redispatch, below)
                self._codes.add(kernel.__code__)
                library.impl(name, kernel, _KEY, with_keyset=True)

    def _kernel(self, operation: Operation, redispatch: Callable[..., Any], below: Any) -> Any:
        begin, end, failed = self._begin, self._end, self._failed
        name_id = self._log.string(f"c10d::{operation.name}")

        def kernel(keyset: Any, *args: Any) -> Any:
            if self._current_eval(get_ident()) is not None:
                self._refuse(operation, args)
            if not self._recording:
                return redispatch(keyset & below, *args)
            begun = begin(operation, name_id, args)
            if begun is None:
                return redispatch(keyset & below, *args)
            try:
                result = redispatch(keyset & below, *args)
            except BaseException:
                failed(begun[0])
                raise
            end(operation, begun, result)
            return result

        return kernel

    def _begin(self, operation: Operation, name_id: int, args: tuple[Any, ...]) -> tuple[Row, Group, Any] | None:
        """The row of an operation that is about to be issued; None if there is to be none."""
        try:
            with self._torch._C.DisableTorchFunction():  # a mode of the user's must not see us look at a tensor
                process_group = self._c10d.ProcessGroup.unbox(args[operation.group_at])
                at = operation.tensors_at
                tensors = flat(args[0 if at is None else at])
                group = self._groups.of(process_group, tensors)
                size, tensor = (0, 0) if at is None else self._sized(tensors)
            if type(size) is not int:
                return None  # symbolic: traced by a compiler, nothing is sent
            if operation.a_share:
                size *= group.size
            told = operation.async_at is not None and (len(args) <= operation.async_at or args[operation.async_at])
            row = self._stream.append(
                perf_counter_ns(), 0, 0, name_id, group.id, -1,
                -1 if operation.peer_at is None else args[operation.peer_at],
                size, tensor, get_ident(), ASYNC_OP if told else 0,
            )  # fmt: skip
            return row, group, process_group
        except Exception as error:
            self._trouble(error)
            return None

    def _end(self, operation: Operation, begun: tuple[Row, Group, Any], result: Any) -> None:
        row, group, process_group = begun
        issued = perf_counter_ns()
        try:
            number = group.number(process_group) if operation.numbered else -1
            self._works.issued(row, issued, number)
            boxed = result[-1] if type(result) in (tuple, list) and result else result
            if boxed is None or isinstance(boxed, (tuple, list)):  # monitored_barrier: over when it returns
                self._works.done(row, issued)
            else:
                self._watch(operation, row, group, self._c10d.Work.unbox(boxed))
        except Exception as error:
            self._trouble(error)

    def _watch(self, operation: Operation, row: Row, group: Group, work: Any) -> None:
        if group.futures and operation.name not in self._futureless:
            try:
                self._works.tell(row, work)
                return
            except RuntimeError:  # gloo has none for send, recv and some composed ones; asking costs 50 µs
                self._futureless.add(operation.name)
        self._works.ask(row, work, group.timed, ends_in_wait=group.futures)

    def _failed(self, row: Row) -> None:
        try:
            self._works.done(row, perf_counter_ns(), failed=True)
        except Exception as error:
            self._trouble(error)

    def _refuse(self, operation: Operation, args: tuple[Any, ...]) -> None:
        """Raise RuntimeError if the eval on this thread would hang the job by this operation."""
        try:
            evaluation = self._current_eval(get_ident())
            process_group = self._c10d.ProcessGroup.unbox(args[operation.group_at])
            ranks = ranks_of(process_group) or tuple(range(process_group.size()))
            if operation.point_to_point and operation.peer_at is not None:
                ranks = tuple(sorted({ranks[process_group.rank()], ranks[args[operation.peer_at]]}))
            name = operation.name.strip("_")
            why = refusal(evaluation, name, process_group.group_name, ranks) if evaluation is not None else None
        except Exception as error:
            self._trouble(error)
            return
        if why is not None:
            raise RuntimeError(why)

    def _log_group(self, record: dict[str, Any]) -> int:
        """The id of this record; a group met again, after its Python object was recreated, keeps its id."""
        key = repr(record)
        known = self._group_ids.get(key)
        if known is None:
            known = self._group_ids[key] = self._log.next_id()
            self._log.put(LOG_GROUP, known, record)
        return known

    def _sized(self, tensors: list[Any]) -> tuple[Any, int]:
        """(bytes, log id of "dtype shape" of the first and how many more there are) of an operation's tensors."""
        if not tensors:
            return 0, 0
        first = tensors[0]
        try:
            size = first.nbytes if len(tensors) == 1 else sum(tensor.nbytes for tensor in tensors)
        except RuntimeError:
            size = sum(_sparse_bytes(tensor) for tensor in tensors)
        if type(size) is not int:
            return size, 0
        key = (first.dtype, first.shape, len(tensors))
        tensor = self._tensors.get(key)
        if tensor is None:
            if len(self._tensors) >= _TENSORS:
                self._tensors.clear()
            tensor = self._tensors[key] = self._log.string(_named(*key))
        return size, tensor

    def _is_capturing(self) -> bool:
        return bool(self._torch.cuda.is_current_stream_capturing())


def _named(dtype: Any, shape: Any, count: int) -> str:
    more = f" +{count - 1}" if count > 1 else ""
    return f"{str(dtype).removeprefix('torch.')} {list(shape)}{more}"


def _sparse_bytes(tensor: Any) -> int:
    """What a sparse tensor takes; nbytes is only there for dense ones."""
    if tensor.layout is not sys.modules["torch"].sparse_coo:
        return 0
    return int(tensor._indices().nbytes + tensor._values().nbytes)


def _no_eval(thread: int) -> None:
    return None
