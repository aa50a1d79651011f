"""What is known about the target before any of its threads is stopped.

Made by `tracer` through `examine`.  Reads /proc and the target's memory, changes nothing; every reason for
which this process cannot be attached to is raised here as an AttachError with a code of its own.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from ...errors import AttachError
from ...host.memory_maps import Mapping, mapping_at, modules, read_mappings
from ...host.process_status import Status, read_status
from ...host.processes import has_ended
from .. import refusals
from .architecture import Architecture
from .elf import Image
from .machines import this_machine
from .target_memory import Memory

_PYTHON_CALLS = (
    "PyGILState_Ensure",
    "PyGILState_Release",
    "PyRun_SimpleString",
    "Py_AddPendingCall",
    "Py_IsInitialized",
)
_LIBC_CALLS = ("mmap", "munmap", "getpid")
_THREAD_CALLS = ("pthread_create", "pthread_self", "pthread_detach")
_LIBPYTHON = re.compile(r"libpython\d")
_LIBC = re.compile(r"libc[.-]")
_LIBC_OR_PTHREAD = re.compile(r"(libc|libpthread)[.-]")
_PYTHON_TRACES = re.compile(r"python\d?|.*\.cpython-3")
_FREE_THREADED = "_Py_MergeZeroLocalRefcount"  # exported by CPython built with Py_GIL_DISABLED only
OLDEST_PYTHON = (3, 10)
OTHER_ATTACH_SECONDS = 0.2  # an attach stops a thread for a few milliseconds

Modules = list[tuple[str, Image]]


@dataclass
class Target:
    """`symbols`: addresses of the functions that attaching calls; `status`: as of the beginning."""

    pid: int
    architecture: Architecture
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


def examine(pid: int) -> Target:
    """Raises AttachError: no such process, not ours, not CPython, or a CPython that cannot be attached to."""
    architecture = this_machine()
    status = _settled_status(pid)
    refusals.check_state(pid, status)
    try:
        mappings = read_mappings(pid)
        if not mappings:
            raise refusals.ended(pid) if has_ended(pid) else refusals.kernel_thread(pid)
        memory = Memory(pid)
    except PermissionError:
        raise refusals.permission(pid, status) from None
    except (FileNotFoundError, ProcessLookupError):
        raise refusals.ended(pid) from None
    target = Target(pid, architecture, status, memory, mappings)
    try:
        _find_everything(target)
    except BaseException:
        memory.close()
        raise
    return target


def _settled_status(pid: int) -> Status:
    """Once no other attach, which takes milliseconds, traces the process."""
    deadline = time.monotonic() + OTHER_ATTACH_SECONDS
    while True:
        try:
            status = read_status(pid)
        except OSError:
            raise refusals.absent(pid) from None
        if not status.tracer or time.monotonic() > deadline:
            return status
        time.sleep(0.001)


def _find_everything(target: Target) -> None:
    loaded = modules(target.mappings)
    _refuse_other_libcs(target, loaded)
    python = _find_python(target, loaded)
    libc = _first(target, _named(loaded, _LIBC), "mmap")
    if libc is None:
        raise refusals.static(target.pid)
    threads = _first(target, _named(loaded, _LIBC_OR_PTHREAD), "pthread_create")
    for names, image in ((_PYTHON_CALLS, python), (_LIBC_CALLS, libc), (_THREAD_CALLS, threads)):
        for name in names:
            address = image.symbol(name) if image else None
            target.symbols[name] = address or _missing(target.pid, name)
    _refuse_unsupported_python(target, loaded, python)
    target.restorer = _find_restorer(target, libc)
    exported = libc.symbol("_thread_db_pthread_tid")
    # exported as {bits, elements, offset}
    offset = int.from_bytes(target.memory.read(exported, 12)[8:], "little") if exported else None
    target.thread_id_offset = target.architecture.thread_id_offset(offset)
    target.allocator = _own_allocator(target, loaded)


def _find_python(target: Target, loaded: dict[str, int]) -> Image:
    executable = executable_of(target.pid)
    of_program = [(executable, loaded[executable])] if executable in loaded else []  # it may execute another just now
    likely = [*_named(loaded, _LIBPYTHON), *of_program]
    python = _first(target, likely, "PyGILState_Ensure") or _first(target, loaded.items(), "PyGILState_Ensure")
    if python is not None:
        return python
    names = [os.path.basename(path) for path in loaded]
    if any(_PYTHON_TRACES.match(name) for name in names):
        raise refusals.no_symbols(target.pid, executable)
    raise refusals.not_python(target.pid, executable)


def executable_of(pid: int) -> str:
    """Its path as in the mappings, "" when unknown."""
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return ""


def _refuse_other_libcs(target: Target, loaded: dict[str, int]) -> None:
    if any(path.rpartition("/")[2].startswith(("ld-musl", "libc.musl")) for path in loaded):
        raise refusals.musl(target.pid)


def _refuse_unsupported_python(target: Target, loaded: dict[str, int], python: Image) -> None:
    if python.symbol(_FREE_THREADED):
        raise refusals.free_threaded(target.pid)
    versions = [
        (int(match[1]), int(match[2]))
        for path in loaded
        if (match := re.match(r"(?:lib)?python(\d)\.(\d+)", os.path.basename(path)))
    ]
    if versions and max(versions) < OLDEST_PYTHON:
        raise refusals.old_python(target.pid, ".".join(map(str, max(versions))))


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


def _missing(pid: int, name: str) -> int:
    raise AttachError(
        f"Process {pid} has no {name}.", "Its C library or interpreter is of a kind not known.", "symbols"
    )


def _find_restorer(target: Target, libc: Image) -> int:
    for address, length in libc.text:
        code = target.memory.read(address, length)
        for pattern in target.architecture.restorers:
            found = code.find(pattern)
            if found >= 0:
                return address + found
    return _missing(target.pid, "signal trampoline")


def _own_allocator(target: Target, loaded: dict[str, int]) -> str:
    executable = executable_of(target.pid)
    own = _first(target, [(executable, loaded[executable])] if executable in loaded else [], "malloc")
    return executable if own else ""
