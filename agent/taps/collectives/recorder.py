"""Records every c10d operation of this process by kernels registered under the dispatcher key BackendSelect.

All operations pass that one place: those of DDP's C++ reducer, aliased functions, functional and compiled collectives,
batches of send and recv.

A row is written before its operation is issued, so an operation that blocks there is visible too.  The row is then
patched in place: issued_ns and group_seq on return, done_ns on completion (works.py).  On a device, done_ns - start_ns
is the time that the device took, measured by the backend's own events.

Where device_policy.py forbids it, nothing is recorded: the kernels then refuse what an eval must not issue, and do
nothing else.
Invariant: the job issues, returns, raises and waits for exactly what it would without us; a fault of ours ends the
recording, never the training.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Any

from ...evals.evaluation import Evaluation
from ...fault import in_words
from ...inspect.call_around import call_around
from ...inspect.exclusive import exclusively
from ...job_signals import raised_by_handler
from ...noop import noop
from ...storage.log import Log
from ...storage.rows import Stream
from ..device_policy import LeftAlone, why_off
from .coalescing import Coalescing
from .device_works import DeviceWorks
from .groups import Groups, ranks_of
from .kernel import Kernels
from .operations import Operation, Tensors, described
from .sources import Sources
from .waits import Waits
from .works import Works

_KEY = "BackendSelect"  # above the backends, below autograd and Python modes
_PATIENCE_S = 0.02  # the job stands still for that long
_removed: list[Any] = []  # kernels of the last agent that is gone


class CollectiveRecorder:
    """install() and remove() run at a boundary on the training thread; everything else runs on any thread."""

    def __init__(
        self, stream: Stream, spans: Stream, log: Log, current_eval: Callable[[int], Evaluation | None]
    ) -> None:
        self.installed, self.recording = False, False
        self.since_ns: int | None = None  # when recording began
        self.why_off = ""
        self.current_eval: Callable[[int], Evaluation | None] = current_eval
        self._stream, self._log = stream, log
        self._works = Works(stream.buffer)
        self._device_works = DeviceWorks(self._works)
        self._waits = Waits(spans, self, self._works.waited, self._device_works)
        self._coalescing = Coalescing(self._device_works, self.report_fault)
        self._groups = Groups(log)
        self._libraries: list[Any] = []
        self._codes: set[Any] = set()  # of the kernels
        self._names: list[str] = []  # of the operations that have one
        self._torch: Any = None
        self._forbidden = False  # once true, it stays true

    def install(self) -> None:
        """Register the kernels, in about 7 ms; why_off says why that failed or why they do not record.  Call it once;
        from then on use pass_through and resume."""
        if self.installed or self.why_off:
            return
        self._torch = sys.modules.get("torch")
        if self._torch is None or not hasattr(self._torch._C, "_distributed_c10d"):
            self.why_off = "torch.distributed is not there"
            return
        why = why_off()
        try:
            self._register(with_waits=not why)
        except Exception as error:  # a torch with other operators: the job goes on without this tap
            self.remove()
            self.why_off = in_words(error)
            return
        self.installed = True
        if why:
            self.report_fault(LeftAlone(why))
        else:
            self.recording, self.since_ns = True, perf_counter_ns()

    def remove(self) -> bool:
        """Remove the kernels; False if a thread is inside one of them: try again at a later boundary."""
        self.recording = False
        if self._libraries and not exclusively(self._destroy, self._codes.__contains__, _PATIENCE_S):
            return False
        self._waits.remove()
        self._coalescing.remove()
        self._works.forget()
        self._device_works.forget()
        self.installed = False
        return True

    def pass_through(self) -> None:
        """Record no operation issued from now on; those in flight are still followed to their end."""
        self.recording = False

    def finish(self, patience_s: float) -> None:
        """Record nothing more, and wait for the callbacks of what is in flight, but no longer than this."""
        self.pass_through()
        self._works.await_callbacks(patience_s)

    def resume(self) -> None:
        self.recording = self.installed and not self.why_off

    def drain(self) -> None:
        """Poll the operations that do not report their completion; on the agent's thread, at 1 Hz.

        Once recording is forbidden, the held works are dropped instead: they are works of gloo on the CPU, as no others
        were ever held, so any thread may drop them.  This is repeated on every call, because an operation under way may
        add its work later.
        """
        if not self._forbidden and (why := why_off()):
            self.report_fault(LeftAlone(why))
        if self._forbidden:
            self._works.give_up()
        else:
            self._works.poll()
            try:
                self._device_works.resolve()
            except Exception as error:  # whatever CUDA raises: the job will run into it by itself
                self.report_fault(error)

    def forked(self) -> None:
        """In a forked child: nothing is recorded, refused or polled any more.  What belongs to a device is kept
        forever, because freeing an event there would end the process."""
        self.recording = self.installed = False
        self.current_eval = noop
        self._works.forget()
        if any(kept := self._device_works.keep()):
            ctypes: Any = sys.modules["ctypes"]
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))

    def release(self) -> None:
        """Leave nothing to the garbage collector.  The kernels hold their own references to what they need: torch keeps
        the last kernel of each operation forever."""
        self.current_eval = noop
        self._works.forget()
        self._device_works.forget()
        self._groups.forget()
        self._waits.remove()
        self._waits.release()
        self._coalescing.remove()

    def report_fault(self, error: BaseException) -> None:
        """A kernel's own code failed, or recording is forbidden from now on: stop recording."""
        if raised_by_handler(error):
            raise error
        self.recording = False
        self._forbidden = self._forbidden or isinstance(error, LeftAlone)
        self.why_off = str(error) if isinstance(error, LeftAlone) else in_words(error)

    def admit(self, evaluation: Evaluation, operation: Operation, args: tuple[Any, ...]) -> None:
        """Wait until this operation of the eval on this thread may begin, which its client knows.

        Raises RuntimeError if it would hang the job, Cancelled if the eval is to end.
        """
        try:
            taking_part = self._taking_part(operation, args)
            why = refusal(evaluation, taking_part["operation"], taking_part["group"], taking_part["ranks"])
            around = call_around(sys._getframe(2), evaluation.filename)
        except Exception as error:  # a fault of ours must not stop a collective
            self.report_fault(error)
            return
        if why is not None:
            raise RuntimeError(why)
        if len(taking_part["ranks"]) > 1:
            evaluation.operations.enter(taking_part, around)

    def _taking_part(self, operation: Operation, args: tuple[Any, ...]) -> dict[str, Any]:
        """The operation and who has to take part in it, as `wants` says it; ranks are the job's."""
        process_group = self._torch._C._distributed_c10d.ProcessGroup.unbox(args[operation.group_at])
        ranks = ranks_of(process_group) or tuple(range(process_group.size()))
        peer = None
        if operation.point_to_point and operation.peer_at is not None:
            peer = ranks[args[operation.peer_at]]
            ranks = tuple(sorted({ranks[process_group.rank()], peer}))
        tag = None if operation.tag_at is None else int(args[operation.tag_at])
        name = operation.name.strip("_")
        return {"operation": name, "group": process_group.group_name, "ranks": ranks, "peer": peer, "tag": tag}

    def _register(self, with_waits: bool) -> None:
        torch, string = self._torch, self._log.string
        c10d = torch._C._distributed_c10d
        known = self._groups, Tensors(string, torch), Sources(string, torch), self._works, self._device_works
        kernels = Kernels(self._stream, *known, c10d)
        library = self._library("c10d")
        below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
        names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("c10d::")]
        for name in (name.removeprefix("c10d::") for name in names):
            base, _, overload = name.partition(".")
            op = getattr(getattr(torch.ops.c10d, base), overload or "default")
            operation = described(op._schema)
            if operation is not None:
                name_id = string(f"c10d::{operation.name}")
                kernel = kernels.kernel(self, operation, name_id, op._handle.redispatch_boxed, below)
                self._put(library, name, kernel)
        if with_waits:
            redispatch = torch.ops._c10d_functional.wait_tensor.default._handle.redispatch_boxed
            self._put(self._library("_c10d_functional"), "wait_tensor", self._waits.kernel(redispatch, below))
            self._waits.install(c10d.Work)
            self._coalescing.install(c10d.ProcessGroup)

    def _library(self, space: str) -> Any:
        library = self._torch.library.Library(space, "IMPL")
        self._libraries.append(library)
        return library

    def _put(self, library: Any, name: str, kernel: Any) -> None:
        self._codes.add(kernel.__code__)
        library.impl(name, kernel, _KEY, with_keyset=True)
        self._names.append(f"{library.ns}::{name}")

    def _destroy(self) -> None:
        """A thread may wait for the GIL in front of a kernel, in C++: torch frees what it goes on with, unless somebody
        else has it.  So a torch that gives it out (2.9) keeps it, until the next agent's kernels are removed."""
        look_up = getattr(self._torch._C, "_dispatch_get_computed_kernel_for_dispatch_key", None)
        kept = [look_up(name, _KEY) for name in self._names] if look_up is not None else []
        while self._libraries:
            self._libraries.pop()._destroy()
        _removed[:] = kept


def refusal(evaluation: Evaluation, operation: str, group: str, ranks: Sequence[int]) -> str | None:
    """Why this operation of an eval would hang the job, in a sentence for the author of the snippet; None only if every
    rank that has to take part runs the eval too.  ranks: all that have to, including this one."""
    if len(ranks) < 2:
        return None
    what = f"{operation} on group {group!r} needs {_named(ranks)}"
    if evaluation.where == "now":
        return f"{what}, which are in the midst of a step: run the eval at a boundary and on all ranks, without --now"
    missing = [] if evaluation.ranks is None else sorted(set(ranks) - set(evaluation.ranks))
    if not missing:
        return None
    return f"{what}, but this eval does not run on {_named(missing)} and the job would hang: run it on all ranks"


def _named(ranks: Sequence[int]) -> str:
    first, last = ranks[0], ranks[-1]
    if len(ranks) == 1:
        return f"rank {first}"
    if len(ranks) > 2 and list(ranks) == list(range(first, last + 1)):
        return f"ranks {first}-{last}"
    return "ranks " + ", ".join(map(str, ranks))
