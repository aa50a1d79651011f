"""torch's profiler, as one capture runs it: on, off, and its trace in memory that has no name in the file system.

Used by captures.py.  Invariant: a profiler that the job begins meanwhile finds none running; ours ends first.
"""

from __future__ import annotations

import gc
import mmap
import os
import sys
from _thread import get_ident
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from tempfile import TemporaryDirectory
from typing import Any

from ..storage.memfd import memfd_create
from ..torch_state import cuda_is_in_use, cuda_may_be_asked, torch_is_imported
from .child_exit import let_children_end
from .guard import Guard

_INJECTED = ("CUDA_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID")  # set by Nsight and others that occupy CUPTI
_MEMORY = "torch-trace"
_CPU_BYTES = 4096  # the first core stands in them; there may be hundreds


def why_none() -> str:
    """Why this process cannot be captured, as far as any thread can tell; "" if nothing speaks against it."""
    if not torch_is_imported():
        return "it has not imported torch"
    if not sys.modules["torch"].autograd.kineto_available():
        return "its torch was built without Kineto"
    if cuda_is_in_use() and not cuda_may_be_asked():
        return "devices are left alone, and torch's profiler, once begun without them, sees none until the process ends"
    if found := next((name for name in _INJECTED if os.environ.get(name)), None):
        return f"{found} is set: another profiler occupies the device"
    if getattr(getattr(sys.modules.get("triton.profiler.flags"), "flags", None), "profiling_on", False):
        return "Triton's Proton is running, which occupies the device"
    return "its own torch.profiler is running" if _module()._is_profiler_enabled else ""


def job_profiles() -> bool:
    """Whether a profiler of the job's own runs or warms up.  On the training thread; some ms for a million objects.

    Kineto does not tell that it was prepared, and to begin anew would then spoil the trace that the job waits for.
    """
    if sys.modules["torch"].autograd._profiler_enabled():
        return True
    kind = _module().profile
    states = (each.__dict__ for each in gc.get_objects() if type(each) is kind)
    return any(each.get("entered") and each.get("kineto_results") is None for each in states)


def cpu_model() -> str:
    """As the kernel calls it, "" where it does not."""
    with suppress(OSError), open("/proc/cpuinfo", errors="replace") as file:
        lines = file.read(_CPU_BYTES).splitlines()
        return next((line.partition(":")[2].strip()[:100] for line in lines if line.startswith("model name")), "")
    return ""


def graph_is_captured() -> bool:
    """Whether this thread captures a CUDA graph: that would break if a profiler, switched off, waits for the device."""
    return cuda_may_be_asked() and bool(sys.modules["torch"].cuda.is_current_stream_capturing())


class Profiler:
    """Made, started and stopped once each, at boundaries on one thread; save() after that on any.

    on_job: called on the thread of the job that is about to begin a profiler of its own.
    """

    def __init__(self, shapes: bool, on_job: Callable[[], None]) -> None:
        torch = sys.modules["torch"]
        kinds = torch.profiler.ProfilerActivity
        on_cuda = cuda_may_be_asked() and kinds.CUDA in torch.profiler.supported_activities()
        chosen = [kinds.CPU, kinds.CUDA] if on_cuda else [kinds.CPU]
        self.threads = int(torch.get_num_threads())  # for an operator on the CPU; of this thread, so asked only here
        self.uses_cuda = cuda_is_in_use()
        self._profile: Any = torch.profiler.profile(activities=chosen, record_shapes=shapes)
        self.guard = Guard(on_job)

    def start(self) -> None:
        let_children_end()
        try:
            with _without_inductor():
                self._profile.start()
            self.guard.install(_begins())
        except BaseException:
            self._switch_off()
            raise

    def stop(self) -> None:
        """Waits for the device, and takes some 10 µs an operator."""
        self.guard.remove()
        try:
            self._profile.stop()
        except BaseException:
            self._switch_off()
            raise

    def leave_child(self) -> None:
        """In a child that was forked meanwhile: the profiler of the thread that forked it would go on there for good,
        with 1 kB an operator.  Kineto is not asked: its threads are not there."""
        self.guard.remove()
        with suppress(AttributeError):
            sys.modules["torch"]._C._autograd._clear_callbacks()

    def _switch_off(self) -> None:
        """After an error, or what a signal handler of the job has raised in the midst of it."""
        self.guard.remove()
        autograd = sys.modules["torch"].autograd
        with suppress(Exception):
            if autograd._profiler_enabled():
                autograd._disable_profiler()
        _module()._run_on_profiler_stop()

    def save(self) -> mmap.mmap:
        """The trace as Chrome's JSON.  Kineto keeps the GIL for some 5 µs an operator.

        It opens a path or, since torch 2.1, that with .tmp behind it, which it renames: both lead to the memory.
        """
        fd = memfd_create(_MEMORY)
        try:
            with TemporaryDirectory(prefix="probe-") as folder:
                path = os.path.join(folder, "trace.json")
                for name in (path, f"{path}.tmp"):
                    os.symlink(f"/proc/self/fd/{fd}", name)
                self._profile.export_chrome_trace(path)
            return mmap.mmap(fd, os.fstat(fd).st_size, prot=mmap.PROT_READ)
        finally:
            os.close(fd)
            self._profile = None


@contextmanager
def _without_inductor() -> Iterator[None]:
    """torch asks itself here whether it has `_inductor`, which imports that: 3 s and 130 MB in a job that has not."""
    torch = vars(sys.modules["torch"])
    lazy = torch.get("_lazy_modules", ())
    if "_inductor" in torch or "_inductor" not in lazy:
        yield
        return
    torch["_lazy_modules"] = _ButInductor(lazy)
    try:
        yield
    finally:
        torch["_lazy_modules"] = lazy


class _ButInductor(frozenset[str]):
    """What torch imports when it is asked for it, less `_inductor` on the thread that has made this."""

    def __init__(self, _: object) -> None:
        self._thread = get_ident()

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) and (name != "_inductor" or get_ident() != self._thread)


def _begins() -> list[tuple[Any, str]]:
    """Where any profiler of torch's begins, which raises as long as one runs."""
    module = _module()
    return [(module, "_run_on_profiler_start"), (module.profile, "_prepare_trace")]


def _module() -> Any:
    return sys.modules["torch.autograd.profiler"]
