"""The processes of this machine: which are Python, have torch, or are ranks.

Called by the verbs `attach`, `list` and `run` and by endpoints.  Reads /proc with the standard library; nothing is
stopped or changed.  A process that ends meanwhile is left out; what may not be read counts as absent.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from ..text import grouped

_PYTHON = re.compile(r"python(\d|$)")
_LIBPYTHON = re.compile(rb"/libpython\d")
_LIBTORCH = re.compile(rb"/libtorch(_cpu|_python)?\.so")
_SPAWNED = "from multiprocessing.spawn import spawn_main"
_HELPERS = re.compile(r"torch[./]_inductor[./]compile_worker|multiprocessing\.resource_tracker")  # in their commands
_LOADER_WORKER = "pt_data_worker"  # as torch names its spawned loader workers' main thread
# Programs that start ranks: they import torch too, and look like a rank until their ranks appear.
_LAUNCHER = re.compile(
    r"(\S+(\s-\S+)*\s)?(\S*/)?(torchrun|torch\.distributed\.(run|launch)"
    r"|accelerate(-launch|\.commands\.launch)?|deepspeed(\.launcher\.(launch|runner))?)(\s|$)"
)
_LAUNCHER_LEAVES = ("LOCAL_RANK", "TORCHELASTIC_RUN_ID")  # what a launcher gives to its ranks and does not have itself
_EXITING = 0x4  # PF_EXITING, in the kernel's flags of a process
_NUMBERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


class Stat(NamedTuple):
    """The stat file of a process, whose cpu_ticks are those of all its threads, or of one thread.

    flags: the kernel's PF_ flags; start_ticks: when it began, in clock ticks since boot; stack: where the kernel has
    put it, 0 for a process that we may not look into.
    """

    name: str
    state: str
    ppid: int
    flags: int
    cpu_ticks: int
    start_ticks: int
    stack: int


def read_stat(pid: int, tid: int | None = None) -> Stat:
    """Of the process, or of one of its threads.  Raises OSError when there is none."""
    with open(f"/proc/{pid}/stat" if tid is None else f"/proc/{pid}/task/{tid}/stat", "rb", buffering=0) as file:
        head, _, tail = file.read().rpartition(b")")
    if not tail:  # it ends just now
        raise ProcessLookupError
    state, *numbers = tail.decode().split()  # from the 3rd field of proc(5) on
    ppid, flags, user, system, start, stack = (int(numbers[field - 4]) for field in (4, 9, 14, 15, 22, 28))
    return Stat(head.partition(b"(")[2].decode(errors="replace"), state, ppid, flags, user + system, start, stack)


@dataclass(frozen=True)
class Process:
    """One process.  start_ticks: when it began, in clock ticks since boot, which distinguishes it from a later one with
    the same pid; rank, world_size, local_rank, local_world_size: from the environment it was started with."""

    pid: int
    ppid: int
    uid: int
    start_ticks: int
    rank: int | None
    world_size: int | None
    local_rank: int | None
    local_world_size: int | None
    command: str
    is_python: bool
    has_torch: bool
    name: str = ""
    launched_by: tuple[str, ...] = field(default=(), repr=False)

    @property
    def is_spawned(self) -> bool:
        """By `multiprocessing.spawn`, for work with torch: a rank, if it is no loader's worker."""
        return self.has_torch and _SPAWNED in self.command


def process(pid: int) -> Process | None:
    """None when there is no such process."""
    try:
        stat, uid = read_stat(pid), os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None
    binary = _program_name(pid)
    maps = _read(f"/proc/{pid}/maps") if binary else b""
    started_with = environment(pid)
    return Process(
        pid=pid,
        ppid=stat.ppid,
        uid=uid,
        start_ticks=stat.start_ticks,
        **{name.lower(): _number(started_with.get(name)) for name in _NUMBERS},
        command=_read(f"/proc/{pid}/cmdline").rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace"),
        is_python=bool(_PYTHON.match(binary) or _LIBPYTHON.search(maps)),
        has_torch=bool(_LIBTORCH.search(maps)),
        name=stat.name,
        launched_by=tuple(started_with.get(variable, "") for variable in _LAUNCHER_LEAVES),
    )


def start_ticks(pid: int) -> int | None:
    """When the process began; None when there is no such process."""
    return None if (stat := _stat(pid)) is None else stat.start_ticks


def program(pid: int) -> tuple[int, int] | None:
    """Identifies a process until it ends or executes another program; None when there is no such process."""
    return None if (stat := _stat(pid)) is None else (stat.start_ticks, stat.stack)


def is_stopped(pid: int) -> bool:
    """By a signal (SIGSTOP, Ctrl-Z) or a debugger."""
    return (stat := _stat(pid)) is not None and stat.state in "tT"


def resident_bytes(pid: int) -> int:
    """The memory that a process has in use; 0 if it has ended."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def has_ended(pid: int) -> bool:
    """Ended or ending: a process that was killed loses its memory before it is a zombie."""
    return (stat := _stat(pid)) is None or stat.state in "ZX" or bool(stat.flags & _EXITING)


def python_processes() -> list[Process]:
    """All Python processes that this user may look into, by pid."""
    found = (process(pid) for pid in sorted(_pids()) if _program_name(pid))
    return [entry for entry in found if entry is not None and entry.is_python]


def with_argument(word: str) -> dict[int, str]:
    """pid -> the last argument, of this user's processes (root's: of all) with this word as the one before the last."""
    ours = (pid for pid in sorted(_pids()) if os.geteuid() in (0, _owner(pid)))
    arguments = {pid: _read(f"/proc/{pid}/cmdline").decode(errors="replace").split("\0") for pid in ours}
    return {pid: words[-2] for pid, words in arguments.items() if len(words) > 2 and words[-3] == word}


def _owner(pid: int) -> int | None:
    with contextlib.suppress(OSError):  # it has ended
        return os.stat(f"/proc/{pid}").st_uid
    return None


def launcher(pid: int) -> int | None:
    """Who has started this process; None where that has ended, and left it to init.  In a container the launcher may
    itself be process 1: it is Python then, which an init is not."""
    parent = 0 if (stat := _stat(pid)) is None else stat.ppid
    is_init = parent <= 1 and ((first := process(parent)) is None or not first.is_python)
    return None if is_init else parent


def descendants(pid: int) -> list[int]:
    """The process and everything below it, parents before their children."""
    return trees([pid])[pid]


def trees(pids: Iterable[int]) -> dict[int, list[int]]:
    """Each of these processes and everything below it, parents before their children; one look at /proc for all."""
    children = grouped((stat.ppid, each) for each in sorted(_pids()) if (stat := _stat(each)) is not None)
    found = {pid: [pid] for pid in pids}
    for order in found.values():
        for each in order:
            order.extend(children.get(each, ()))
    return found


def ranks_below(pid: int) -> list[Process]:
    """The ranks of the job at or below this process, by rank; [] if there are none.

    A rank is the topmost Python process with each value of RANK in its initial environment.  Without any RANK, the
    ranks are the children made by `multiprocessing.spawn` that have torch; without these, the topmost Python processes
    that have torch and are no launchers, which are several jobs if there are several; else the topmost Python process.
    Loader workers, resource trackers and compile workers are none, though they inherit a RANK that the job has given
    itself; neither is the process that asks, unless it has a RANK of its own.
    """
    tree = [entry for each in descendants(pid) if (entry := process(each)) is not None]
    own = os.getpid()
    return choose_ranks([entry for entry in tree if entry.pid == pid or entry.pid != own or entry.rank is not None])


def choose_ranks(tree: list[Process]) -> list[Process]:
    """`ranks_below` of processes given parents first."""
    pythons = [entry for entry in tree if entry.is_python and not is_worker(entry)]
    with_rank = [entry for entry in pythons if entry.rank is not None]
    with_rank = [entry for entry in with_rank if not _launches(entry, with_rank, tree)]
    if with_rank:
        return sorted(_without_nested(with_rank, tree), key=lambda entry: (entry.rank or 0, entry.pid))
    spawned = [entry for entry in pythons if entry.is_spawned]
    with_torch = [entry for entry in pythons if entry.has_torch and not is_launcher(entry)]
    return _without_nested(spawned, tree) or _without_nested(with_torch, tree) or pythons[:1]


def is_launcher(entry: Process) -> bool:
    """Whether the process starts ranks without being one."""
    return entry.rank is None and bool(_LAUNCHER.match(entry.command))


def is_worker(entry: Process) -> bool:
    """Whether its name or command says that it works for a rank: a loader's worker, a compile worker, a tracker."""
    return entry.name == _LOADER_WORKER or _HELPERS.search(entry.command) is not None


def _launches(entry: Process, others: Iterable[Process], tree: list[Process]) -> bool:
    """Some schedulers give RANK to a node's launcher too, but not the variables that the launcher gives its ranks."""
    below = _below(entry.pid, tree)
    return not any(entry.launched_by) and any(other.pid in below and any(other.launched_by) for other in others)


def _without_nested(entries: list[Process], tree: list[Process]) -> list[Process]:
    nested = {pid for entry in entries for pid in _below(entry.pid, tree)}
    return [entry for entry in entries if entry.pid not in nested]


def _below(pid: int, tree: list[Process]) -> set[int]:
    inside = {pid}
    for entry in tree:
        if entry.ppid in inside:
            inside.add(entry.pid)
    return inside - {pid}


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _stat(pid: int) -> Stat | None:
    with contextlib.suppress(OSError):
        return read_stat(pid)
    return None


def namespace(pid: int, kind: str) -> str:
    """Identifies a namespace ("net", "pid") of a process; "" if that cannot be read."""
    try:
        return os.readlink(f"/proc/{pid}/ns/{kind}")
    except OSError:
        return ""


def environment(pid: int) -> dict[str, str]:
    """As it was when the process began; {} if it cannot be read."""
    entries = (entry.partition("=") for entry in os.fsdecode(_read(f"/proc/{pid}/environ")).split("\0"))
    return {name: value for name, _, value in reversed(list(entries))}  # the first of a name counts


def executable(pid: int) -> str:
    """Its path as the kernel has it, also when it is deleted; "" for kernel threads, and for a process that is gone or
    may not be looked into."""
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return ""


def _program_name(pid: int) -> str:
    return os.path.basename(executable(pid).removesuffix(" (deleted)"))


def _read(path: str) -> bytes:
    """b"" when it may not be read or is gone."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None


def boot_id() -> str:
    """Identifies this machine until its next boot; "" where that cannot be read."""
    return _read("/proc/sys/kernel/random/boot_id").decode().strip()
