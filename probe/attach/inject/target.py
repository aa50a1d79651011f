"""What is known about the target before any of its threads is stopped.

Made by `examine`, for `delivery`, `doctor` and `gil_holder`.  Reads /proc and the target's memory, changes nothing;
every reason for which this process cannot be attached to is raised here as an AttachError with a code of its own.
"""

from __future__ import annotations

import errno
import os
import platform
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from ...host.memory_maps import Mapping, mapping_at, modules, read_mappings
from ...host.process_status import Status, read_status
from ...host.processes import executable, has_ended
from ..python_installation import newest_version
from ..refusals import OLDEST_PYTHON, absent, check_state, permission, refusal
from . import ptrace
from .elf import Image
from .x86_64 import X86_64

_PYTHON_CALLS = (
    "PyGILState_Ensure", "PyGILState_Release", "PyRun_SimpleString", "Py_AddPendingCall", "Py_IsInitialized",
)  # fmt: skip
_LIBC_CALLS = ("mmap", "munmap", "getpid")
_THREAD_CALLS = ("pthread_create", "pthread_self", "pthread_detach")
_LIBPYTHON = re.compile(r"libpython\d")
_LIBC = re.compile(r"libc[.-]")
_LIBC_OR_PTHREAD = re.compile(r"(libc|libpthread)[.-]")
_MUSL = re.compile(r"ld-musl|libc\.musl")
_PYTHON_TRACES = re.compile(r"python\d?|.*\.cpython-3")
_FREE_THREADED = "_Py_MergeZeroLocalRefcount"  # exported by CPython built with Py_GIL_DISABLED only
OTHER_ATTACH_SECONDS = 0.2  # an attach stops a thread for a few milliseconds


class Memory:
    """The target's bytes through /proc/PID/mem; neither namespaces nor deleted files matter to it.

    Only the remote call uses `write`; nothing else here changes the target.  descriptor: for code that closes all
    other files.
    """

    def __init__(self, pid: int) -> None:
        path = f"/proc/{pid}/mem"
        try:
            self.descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except PermissionError:
            self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self, address: int, length: int) -> bytes:
        data = os.pread(self.descriptor, length, address)
        if len(data) != length:
            raise OSError(errno.EIO, f"{len(data)} of {length} bytes at {address:#x}")
        return data

    def write(self, address: int, data: bytes, tid: int) -> None:
        """Writes also to pages that the target may not write.  Kernels may forbid that through /proc/PID/mem
        (proc_mem.force_override, 6.12); then the stopped thread `tid` is used."""
        try:
            done = 0
            while done < len(data):
                done += os.pwrite(self.descriptor, data[done:], address + done)
        except OSError:
            ptrace.poke(tid, address, data)

    def close(self) -> None:
        os.close(self.descriptor)


@dataclass
class Target:
    """symbols: addresses of the functions that attaching calls; status: as of the beginning."""

    pid: int
    architecture: X86_64
    status: Status
    memory: Memory
    mappings: list[Mapping]
    symbols: dict[str, int] = field(default_factory=dict)
    restorer: int = 0
    thread_id_offset: int = 0
    allocator: str = ""  # path of the executable when it brings a malloc of its own

    def place(self, address: int) -> str:
        """The file that is mapped there, "[anonymous]", or "nowhere"."""
        mapping = mapping_at(self.mappings, address)
        return "nowhere" if mapping is None else mapping.path or "[anonymous]"

    def refresh(self) -> None:
        self.mappings = read_mappings(self.pid)

    def close(self) -> None:
        self.memory.close()


def this_machine() -> X86_64:
    """The machine's processor, one line here for each that attaching supports.  Raises AttachError for any other."""
    machine = platform.machine()
    if machine == "x86_64":
        return X86_64()
    raise refusal("architecture", machine=machine)


def examine(pid: int) -> Target:
    """Raises AttachError: no such process, not ours, not CPython, or a CPython that cannot be attached to."""
    architecture = this_machine()
    status = _settled_status(pid)
    check_state(pid, status)
    try:
        mappings = read_mappings(pid)
        if not mappings:
            raise refusal("target-ended" if has_ended(pid) else "kernel-thread", pid)
        memory = Memory(pid)
    except PermissionError:
        raise permission(pid, status) from None
    except (FileNotFoundError, ProcessLookupError):
        raise refusal("target-ended", pid) from None
    target = Target(pid, architecture, status, memory, mappings)
    try:
        _find_everything(target)
    except BaseException:
        memory.close()
        raise
    return target


def _settled_status(pid: int) -> Status:
    """The status once no other attach, which takes milliseconds, traces the process."""
    deadline = time.monotonic() + OTHER_ATTACH_SECONDS
    while True:
        try:
            status = read_status(pid)
        except OSError:
            raise absent(pid) from None
        if not status.tracer or time.monotonic() > deadline:
            return status
        time.sleep(0.001)


def _find_everything(target: Target) -> None:
    loaded = modules(target.mappings)
    if _named(loaded, _MUSL):
        raise refusal("musl", target.pid)
    path = executable(target.pid)
    program = [(path, loaded[path])] if path in loaded else []  # it may be executing another just now
    python = _find_python(target, loaded, program, os.path.basename(path))
    libc = _first(target, _named(loaded, _LIBC), "mmap")
    if libc is None:
        raise refusal("static", target.pid)
    threads = _first(target, _named(loaded, _LIBC_OR_PTHREAD), "pthread_create")
    for names, image in ((_PYTHON_CALLS, python), (_LIBC_CALLS, libc), (_THREAD_CALLS, threads)):
        for name in names:
            address = image.symbol(name) if image else None
            if not address:
                raise refusal("symbols", target.pid, symbol=name)
            target.symbols[name] = address
    if python.symbol(_FREE_THREADED):
        raise refusal("free-threaded", target.pid)
    version = newest_version(loaded)
    if version is not None and version < OLDEST_PYTHON:
        raise refusal("old-python", target.pid, version=".".join(map(str, version)))
    target.restorer = _find_restorer(target, libc)
    exported = libc.symbol("_thread_db_pthread_tid")  # {bits, elements, offset}
    offset = int.from_bytes(target.memory.read(exported, 12)[8:], "little") if exported else None
    target.thread_id_offset = target.architecture.thread_id_offset if offset is None else offset
    target.allocator = path if _first(target, program, "malloc") else ""


def _find_python(target: Target, loaded: dict[str, int], program: list[tuple[str, int]], name: str) -> Image:
    # the program first: beside one that has Python inside, a libpython that an extension brings along is idle
    likely = [*program, *_named(loaded, _LIBPYTHON)]
    python = _first(target, likely, "PyGILState_Ensure") or _first(target, loaded.items(), "PyGILState_Ensure")
    if python is not None:
        return python
    traces = any(_PYTHON_TRACES.match(os.path.basename(path)) for path in loaded)
    raise refusal("no-symbols" if traces else "not-python", target.pid, name=name or "unknown")


def _named(loaded: dict[str, int], pattern: re.Pattern[str]) -> list[tuple[str, int]]:
    return [(path, base) for path, base in loaded.items() if pattern.match(path.rpartition("/")[2])]


def _first(target: Target, candidates: Iterable[tuple[str, int]], symbol: str) -> Image | None:
    """The first module that defines the symbol; files that are no modules are passed over."""
    for _path, base in candidates:
        try:
            image = Image(target.memory, base)
            if image.symbol(symbol):
                return image
        except ValueError:
            continue
    return None


def _find_restorer(target: Target, libc: Image) -> int:
    for address, length in libc.text:
        code = target.memory.read(address, length)
        for pattern in target.architecture.restorers:
            if (found := code.find(pattern)) >= 0:
                return address + found
    raise refusal("symbols", target.pid, symbol="signal trampoline")
