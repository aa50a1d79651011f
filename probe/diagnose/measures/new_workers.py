"""Whether a loader that has no workers could start some in the running job, or what would then go wrong.

Called by the rule on slow loaders.  Invariant: attributes are read, no function of the job is called; where the job
cannot tell, the answer is not that all is well.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..watched import Watched
from .live_values import value, values_elsewhere

STREAM, DEVICE, FILE, DAEMON, START, SHM = "stream", "device", "file", "daemon", "start", "shm"
ROOM = ", with room in /dev/shm for their batches, which pass through it (Docker: --shm-size)"
_ITEMS, _VALUES = 64, 512  # looked at of each collection, and of all: some milliseconds of the training's time
# Modules whose objects are open files: `_io` has the base of all that Python reads and writes.
_FILES = ("_io", "h5py", "lmdb", "sqlite3", "tarfile", "tempfile", "zipfile")
_CLOSED = ("BytesIO", "Row", "StringIO", "TarInfo", "ZipInfo")  # of these, what only has been read
# A worker that finds no room for a batch ends by a bus error.  Docker gives 64 MB; workers seldom have 1 GB under way.
_LEAST_FREE = 1 << 30
_MEMORY = (
    "[[s.f_frsize * (s.f_blocks - s.f_bavail), s.f_frsize * s.f_bavail] for s in "
    "[__import__('os').statvfs('/dev/shm')]][0]"
)
# CUDA cannot be used in a child that is forked after its parent has used it, and a child that is not forked gets
# dataset and collate_fn pickled: either way the worker may raise, and the loader raises that in the training loop.
_WHY_NOT = f"""
def _probe_why_not(loader):
    import functools, itertools, multiprocessing, os, sys, types
    import torch

    def held(value):  # by a dataset or a collection
        if type(value) in (list, tuple, dict):
            return value.values() if type(value) is dict else value
        return getattr(value, "__dict__", {{}}).values() if hasattr(type(value), "__getitem__") else ()

    def functions(value):
        kind = type(value)
        for each in (value, *(getattr(kind, name, None) for name in ("__call__", "__getitem__", "__getitems__"))):
            while type(each) in (types.MethodType, functools.partial):
                each = each.func if type(each) is functools.partial else each.__func__
            if type(each) is types.FunctionType:
                yield each.__code__

    def words(code):
        for each in (*code.co_names, *code.co_consts):
            if type(each) is types.CodeType:
                yield from words(each)
            else:  # a tuple names the arguments of a call
                yield from each if type(each) is tuple else (each,)

    def is_on_device(value):
        if issubclass(type(value), torch.Tensor):
            return not value.is_cpu
        if not torch.cuda.is_initialized():
            return False
        return any(word in ("cuda", "to", "device") for code in functions(value) for word in words(code))

    def is_open(value):  # a forked worker shares its position with all others, and what it locks
        kind = type(value)
        modules = {{str(each.__module__).partition(".")[0] for each in kind.__mro__}}
        of_lmdb = getattr(sys.modules.get("lmdb"), kind.__name__, None)  # its types in C name no module
        if of_lmdb is kind:
            return True
        return kind.__name__ not in {_CLOSED} and not modules.isdisjoint({_FILES})

    if issubclass(type(loader.dataset), torch.utils.data.IterableDataset):
        return {STREAM!r}
    values = [loader.dataset, loader.collate_fn]
    for each in values:  # which grows meanwhile
        values += itertools.islice(held(each), min({_ITEMS}, {_VALUES} - len(values)))
    if any(map(is_on_device, values)):
        return {DEVICE!r}
    if any(map(is_open, values)):
        return {FILE!r}
    if vars(multiprocessing.current_process())["_config"].get("daemon"):
        return {DAEMON!r}
    context = vars(loader).get("_DataLoader__multiprocessing_context") or multiprocessing
    # Without allow_none, asking would settle the method for the job.
    method = context.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]
    if method != "fork":
        return {START!r}
    memory = os.statvfs("/dev/shm")
    return {SHM!r} if memory.f_frsize * memory.f_bavail < {_LEAST_FREE} else ""

_probe_why_not(LOADER)
"""


def why_not(watched: Watched, live: str) -> str | None:
    """STREAM: each worker would yield every sample; DEVICE: samples or batches are made on one, which a forked worker
    cannot use; FILE: the dataset keeps a file open, which forked workers would share; DAEMON: the process may have no
    children; START: workers are not forked; SHM: /dev/shm may be too small for batches; '' where workers can start,
    None if it cannot be told.

    live: what the loader is in the job.
    """
    told = value(watched, _WHY_NOT.replace("LOADER", live))
    if told == "" and not _fits(values_elsewhere(watched, _MEMORY), 0.0):
        return SHM
    return None if told is None else str(told or "")


def has_room(watched: Watched, times: float) -> bool:
    """Whether /dev/shm has room for the batches of so many times the workers that there are, on each host, and that it
    is known."""
    return _fits([value(watched, _MEMORY)], times) and _fits(values_elsewhere(watched, _MEMORY), times)


def _fits(hosts: Iterable[Any], times: float) -> bool:
    """hosts: of each, what is used and what is free."""
    return all(free >= max(_LEAST_FREE, times * used) for used, free in (each or (0, 0) for each in hosts))
