"""The kernel in front of one c10d operation: it writes the operation's row before the issue and patches it after.

The tap of collectives builds the kernels; the thread that issues an operation runs its kernel.

Everything a kernel needs is a local of its closure: between two collectives the caches go cold, and each attribute
lookup then costs as much as packing the row.
Invariant: the operation is sent exactly once and exactly as it came, whatever happens to the row.
"""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Callable
from functools import partial
from struct import Struct
from time import perf_counter_ns
from typing import Any, Protocol

from ....streams import ASYNC_OP, ASYNC_UNKNOWN, BLOCKING, COLLECTIVES, STREAMS
from ...storage.rows import Stream
from ..device_policy import cuda_check
from ..dynamo import shielded_from_dynamo
from .device_works import DeviceWorks
from .groups import Group, Groups
from .operations import Operation, Tensors, flat
from .sources import Sources
from .works import Works

# the row's offset and seq, the group, its torch object, whether the caller waits at once and the operation ends there,
# and what DeviceWorks.begin() returned, where it was called
Begun = tuple[int, int, Group, Any, bool, Any]

_SLOTS = STREAMS[COLLECTIVES]
_SEQ_AT, _ISSUED_AT = 8 * _SLOTS.index("seq"), 8 * _SLOTS.index("issued_ns")
_AFTER_ISSUE = Struct("<5q")  # issued_ns, done_ns, operation, group, group_seq
_SLOT = Struct("<q")


class Recorder(Protocol):
    """What kernels and waits use of the recorder."""

    recording: bool
    current_eval: Callable[[int], Any]

    def admit(self, evaluation: Any, operation: Operation, args: tuple[Any, ...]) -> None: ...
    def report_fault(self, error: Exception) -> None: ...


class Kernels:
    """Makes the kernels of one recorder; they share its stream, groups, tensors, sources and works."""

    def __init__(
        self, stream: Stream, groups: Groups, tensors: Tensors, sources: Sources, works: Works,
        device_works: DeviceWorks, c10d: Any,
    ) -> None:  # fmt: skip
        self._stream, self._groups, self._tensors, self._sources, self._works = stream, groups, tensors, sources, works
        self._device_works, self._c10d = device_works, c10d

    def kernel(
        self, recorder: Recorder, operation: Operation, name: int, redispatch: Callable[..., Any], below: Any
    ) -> Any:
        """name: log id of the operation's name.  redispatch() with `below` calls whatever comes after this kernel."""
        begin, end, raised = self._begin(operation, name), self._end(operation, name), self._works.raised

        def kernel(keyset: Any, *args: Any) -> Any:
            evaluation = recorder.current_eval(get_ident())
            if evaluation is not None:
                recorder.admit(evaluation, operation, args)
            begun = None
            if recorder.recording:
                try:
                    begun = begin(args)
                except Exception as error:  # inside a collective of the user: no exception of ours may escape
                    recorder.report_fault(error)
            try:
                result = redispatch(keyset & below, *args)
            except BaseException:
                if begun is not None:
                    raised(begun[0], begun[1])
                raise
            finally:
                if evaluation is not None:
                    evaluation.operations.has_begun()
            if begun is not None:
                try:
                    end(begun, result)
                except Exception as error:  # as above
                    recorder.report_fault(error)
            return result

        return shielded_from_dynamo(kernel)

    def _begin(self, operation: Operation, name: int) -> Callable[[tuple[Any, ...]], Begun | None]:
        """A function that writes the row of an operation about to be issued; it returns None if there is no row."""
        group_at, async_at, peer_at = operation.group_at, operation.async_at, operation.peer_at
        tensors_at, a_share, sizeless = operation.tensors_at, operation.a_share, operation.sizeless
        unbox, group_of, size_of = self._c10d.ProcessGroup.unbox, self._groups.of, self._tensors.size_of
        claim, pack_into, buffer = self._stream.claim, self._stream.pack_into, self._stream.buffer
        source_of, native = self._sources.of, self._sources.of_native(operation.name)
        functional, begin_on_device = self._sources.of_native("functional"), self._device_works.begin
        check_cuda = cuda_check()
        untold = ASYNC_UNKNOWN if async_at is None and operation.returns else 0  # without a Work it ends in the call

        def begin(args: tuple[Any, ...]) -> Begun | None:
            check_cuda()
            process_group = unbox(args[group_at])
            tensors = flat(args[tensors_at])
            group = group_of(process_group, tensors)
            size, tensor = (0, 0) if sizeless else size_of(tensors)
            if type(size) is not int:
                return None  # symbolic: a compiler traces the call and nothing is sent
            if a_share:
                size *= group.size
            # the dispatcher omits arguments that have their default; async_op's is True
            is_async = async_at is not None and (len(args) <= async_at or args[async_at])
            peer = -1 if peer_at is None else args[peer_at]
            blocking = group.futures and async_at is not None and not is_async
            flags = ASYNC_OP if is_async else BLOCKING if blocking else untold
            thread, source = get_ident(), source_of(native)
            offset, seq = claim()
            start = perf_counter_ns()
            pack_into(buffer, offset, start, 0, 0, name, group.id, -1, peer, size, tensor, source, thread, flags, seq)
            on_device = None
            if group.timed:
                pointer = flat(args[0])[0].data_ptr() if source == functional else 0
                in_cpp = source in (native, functional)
                index = tensors[0].device.index if tensors else None
                on_device = begin_on_device(index, (offset, seq), in_cpp, pointer)
            return offset, seq, group, process_group, blocking, on_device

        return begin

    def _end(self, operation: Operation, name: int) -> Callable[[Begun, Any], None]:
        """A function that runs after the issue: it stores the number and arranges how completion will be learned."""
        unbox, numbered, returns = self._c10d.Work.unbox, operation.numbered, operation.returns
        buffer, works = self._stream.buffer, self._works
        future_done, poll_later, done = works.callback(), works.poll_later, works.done
        issued_on_device = self._device_works.issued
        read, pack = _SLOT.unpack_from, _AFTER_ISSUE.pack_into
        has_future = not operation.point_to_point

        def end(begun: Begun, result: Any) -> None:
            nonlocal has_future
            issued = perf_counter_ns()
            offset, seq, group, process_group, blocking, on_device = begun
            number = group.number(process_group) if numbered else -1
            if read(buffer, offset + _SEQ_AT)[0] == seq:  # else the issue took so long that the ring was overwritten
                pack(buffer, offset + _ISSUED_AT, issued, 0, name, group.id, number)
            if returns == 0:  # monitored_barrier: it has ended when it returns
                done(offset, seq, issued)
                return
            boxed = result[-1] if returns > 1 else result
            if group.timed:  # NCCL returns no Work of an operation that runs on the current stream
                issued_on_device(on_device, (offset, seq), None if boxed is None else unbox(boxed))
                return
            work = unbox(boxed)
            # a caller that waits at once uses Work.wait in Python, which is cheaper to observe than a future's callback
            if group.futures and has_future and not blocking:
                try:
                    work.get_future().add_done_callback(partial(future_done, offset, seq))
                    return
                except RuntimeError:  # gloo has none for composed operations, and finding out costs 50 µs
                    has_future = False
            poll_later(offset, seq, work, group.futures, blocking)

        return end
