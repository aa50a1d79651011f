"""Counters of this process and its host out of /proc and getrusage, as the kernel gives them.

Called by agent/samplers/sampler_loop.py, on the agent's thread.  The one invariant: what cannot be read gives no
sample, and keeps nothing else from being read.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from time import perf_counter_ns, process_time_ns, sleep

from ...streams import (
    CORE_WAIT_NS,
    CPU_NS,
    GIL_WAIT_NS,
    HOST_IDLE_TICKS,
    HOST_MEMORY_AVAILABLE_KB,
    HOST_MEMORY_KB,
    HOST_TICKS,
    INVOLUNTARY_SWITCHES,
    MAJOR_FAULTS,
    PROCESS,
    READ_BYTES,
    RSS_BYTES,
    THREADS,
    VOLUNTARY_SWITCHES,
    WRITTEN_BYTES,
)
from ..storage.rows import Stream

Readings = tuple[tuple[int, int], ...]  # (counter, value)

_PAGE = os.sysconf("SC_PAGE_SIZE")
_READ = 1024  # all of these files but /proc/stat are shorter, and of that the first line is wanted
# Long enough for a thread that waits for the GIL to wake up and take it: a call that returns at once has it back
# before that thread is awake, and sees no wait however busy the GIL is.
_NAP_S = 100e-6
_NAP_NS = 150_000  # with the 50 µs by which the kernel may be late


class Process:
    """sample() on the agent's thread, once a second."""

    def __init__(self, samples: Stream) -> None:
        import resource  # an extension module: where it is missing the other samplers go on

        self._put = samples.append
        self._usage, self._whole, self._thread = resource.getrusage, resource.RUSAGE_SELF, resource.RUSAGE_THREAD
        self._files: dict[int, str] = {}  # descriptor -> path
        self._unreadable: list[str] = []
        for path in FILES:
            try:
                self._files[os.open(path, os.O_RDONLY)] = path
            except OSError as error:
                self._unreadable.append(f"{path}: {error.strerror}")

    @property
    def state(self) -> str:
        return f"on, without {', '.join(self._unreadable)}" if self._unreadable else "on"

    def sample(self) -> None:
        """A row of each counter, all with one time: that of the first, which are read in one go."""
        waited = self._gil_wait_ns()
        usage, cpu, now = self._usage(self._whole), process_time_ns(), perf_counter_ns()
        put = self._put
        put(now, PROCESS, CPU_NS, cpu)
        put(now, PROCESS, VOLUNTARY_SWITCHES, usage.ru_nvcsw)
        put(now, PROCESS, INVOLUNTARY_SWITCHES, usage.ru_nivcsw)
        put(now, PROCESS, MAJOR_FAULTS, usage.ru_majflt)
        put(now, PROCESS, GIL_WAIT_NS, waited)
        for fd in list(self._files):
            for counter, value in self._read(fd):
                put(now, PROCESS, counter, value)

    def _gil_wait_ns(self) -> int:
        """How much longer than a nap it took until this thread could run Python again; 0 if it blocked for the nap
        only, as the kernel counts: a core that came late is no wait for the GIL."""
        blocked, start = self._usage(self._thread).ru_nvcsw, perf_counter_ns()
        sleep(_NAP_S)
        took = perf_counter_ns() - start
        again = self._usage(self._thread).ru_nvcsw - blocked > 1
        return max(0, took - _NAP_NS) if again else 0

    def _read(self, fd: int) -> Readings:
        """Nothing of a file that cannot be read, or not understood; it is not read again."""
        try:
            return FILES[self._files[fd]](os.pread(fd, _READ, 0))
        except (OSError, LookupError, ValueError) as error:
            self._unreadable.append(f"{self._files.pop(fd)}: {error!r}")
            os.close(fd)
            return ()

    def close(self) -> None:
        while self._files:
            os.close(self._files.popitem()[0])

    forget = close


def _stat(text: bytes) -> Readings:
    fields = text[text.rindex(b")") + 2 :].split()
    return (THREADS, int(fields[17])), (RSS_BYTES, int(fields[21]) * _PAGE)


def _schedule(text: bytes) -> Readings:
    """Of the main thread: time on a core, time it waited for one, and how often it got one."""
    return ((CORE_WAIT_NS, int(text.split()[1])),)


def _io(text: bytes) -> Readings:
    named = _named(text)
    return (READ_BYTES, named[b"read_bytes:"]), (WRITTEN_BYTES, named[b"write_bytes:"])


def _host_stat(text: bytes) -> Readings:
    """user nice system idle iowait irq softirq steal; the guests' that follow are counted in user already."""
    ticks = [int(field) for field in text.partition(b"\n")[0].split()[1:9]]
    return (HOST_TICKS, sum(ticks)), (HOST_IDLE_TICKS, ticks[3] + ticks[4])


def _host_memory(text: bytes) -> Readings:
    named = _named(text.replace(b" kB", b""))
    return (HOST_MEMORY_KB, named[b"MemTotal:"]), (HOST_MEMORY_AVAILABLE_KB, named[b"MemAvailable:"])


def _named(text: bytes) -> dict[bytes, int]:
    """Whole lines only: the last may be cut off."""
    words = text[: text.rindex(b"\n")].split()
    return {name: int(value) for name, value in zip(words[::2], words[1::2], strict=True)}


FILES: dict[str, Callable[[bytes], Readings]] = {
    "/proc/self/stat": _stat,
    "/proc/self/schedstat": _schedule,
    "/proc/self/io": _io,
    "/proc/stat": _host_stat,
    "/proc/meminfo": _host_memory,
}
