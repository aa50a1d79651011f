"""Samples counters of this process and its host from /proc and getrusage, with the kernel's own values.

Called by agent/samplers/sampler_loop.py, on the agent's thread.  Invariant: a counter that cannot be read yields no
sample, and does not keep the others from being read.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from time import perf_counter_ns, process_time_ns, sleep

from ... import streams
from ..noop import noop
from ..storage.rows import Stream
from .sampler import FULL

Readings = tuple[tuple[int, int], ...]  # (counter, value)

_PAGE = os.sysconf("SC_PAGE_SIZE")
_READ_BYTES = 1024  # all of these files are shorter, except /proc/stat, of which only the first line is needed
# Long enough for a thread that waits for the GIL to wake up and take it.  A call that returns at once has the GIL back
# before that thread is awake, and measures no wait however busy the GIL is.
_NAP_S = 100e-6
_NAP_NS = 150_000  # including the 50 µs by which the kernel may be late


class Process:
    """sample() on the agent's thread, once a second."""

    name = "process"

    def __init__(self, samples: Stream, *_: object) -> None:
        import resource  # an extension module: where it is missing, the other samplers still work

        self._append = samples.append
        self._resource = resource
        self._files = list(FILES)  # opened anew each time: the job may need its descriptors
        self._unreadable: list[str] = []
        for path in FILES:
            self._read(path)

    @property
    def state(self) -> str:
        return f"on, without {', '.join(self._unreadable)}" if self._unreadable else "on"

    def sample(self) -> None:
        """Append one row per counter.  All share the time of the first ones, which are read together."""
        gil_wait_ns = self._gil_wait_ns()
        usage = self._resource.getrusage(self._resource.RUSAGE_SELF)
        cpu_ns, now = process_time_ns(), perf_counter_ns()
        append = self._append
        append(now, streams.PROCESS, streams.CPU_NS, cpu_ns)
        append(now, streams.PROCESS, streams.VOLUNTARY_SWITCHES, usage.ru_nvcsw)
        append(now, streams.PROCESS, streams.INVOLUNTARY_SWITCHES, usage.ru_nivcsw)
        append(now, streams.PROCESS, streams.MAJOR_FAULTS, usage.ru_majflt)
        append(now, streams.PROCESS, streams.GIL_WAIT_NS, gil_wait_ns)
        for path in list(self._files):
            for counter, value in self._read(path):
                append(now, streams.PROCESS, counter, value)

    def _gil_wait_ns(self) -> int:
        """How much longer than a nap it took until this thread could run Python again.

        0 if the kernel counts only the nap as a voluntary switch: waiting for a core is not waiting for the GIL.
        """
        switches, start = self._voluntary_switches(), perf_counter_ns()
        sleep(_NAP_S)
        took_ns = perf_counter_ns() - start
        blocked_again = self._voluntary_switches() - switches > 1
        return max(0, took_ns - _NAP_NS) if blocked_again else 0

    def _voluntary_switches(self) -> int:
        return self._resource.getrusage(self._resource.RUSAGE_THREAD).ru_nvcsw

    def _read(self, path: str) -> Readings:
        """The file's counters; none if it cannot be read or parsed, and then it is not read again."""
        try:
            file = os.open(path, os.O_RDONLY)
            try:
                return FILES[path](os.read(file, _READ_BYTES))
            finally:
                os.close(file)
        except (OSError, LookupError, ValueError) as error:
            if getattr(error, "errno", None) not in FULL:
                self._files.remove(path)
                self._unreadable.append(f"{path}: {error.strerror if isinstance(error, OSError) else repr(error)}")
            return ()

    close = forget = noop


def _stat(text: bytes) -> Readings:
    fields = text[text.rindex(b")") + 2 :].split()
    return (streams.THREADS, int(fields[17])), (streams.RSS_BYTES, int(fields[21]) * _PAGE)


def _schedule(text: bytes) -> Readings:
    """For the main thread, the file holds the time on a core, the time waiting for one, and the number of slices."""
    return ((streams.CORE_WAIT_NS, int(text.split()[1])),)


def _io(text: bytes) -> Readings:
    named = _named(text)
    return (streams.READ_BYTES, named[b"read_bytes:"]), (streams.WRITTEN_BYTES, named[b"write_bytes:"])


def _host_stat(text: bytes) -> Readings:
    """user nice system idle iowait irq softirq steal; user already includes the guest times that follow."""
    ticks = [int(field) for field in text.partition(b"\n")[0].split()[1:9]]
    return (streams.HOST_TICKS, sum(ticks)), (streams.HOST_IDLE_TICKS, ticks[3] + ticks[4])


def _host_memory(text: bytes) -> Readings:
    named = _named(text.replace(b" kB", b""))
    return (streams.HOST_MEMORY_KB, named[b"MemTotal:"]), (streams.HOST_MEMORY_AVAILABLE_KB, named[b"MemAvailable:"])


def _named(text: bytes) -> dict[bytes, int]:
    """Uses complete lines only: the last one may be cut off."""
    words = text[: text.rindex(b"\n")].split()
    return {name: int(value) for name, value in zip(words[::2], words[1::2], strict=True)}


FILES: dict[str, Callable[[bytes], Readings]] = {
    "/proc/self/stat": _stat,
    "/proc/self/schedstat": _schedule,
    "/proc/self/io": _io,
    "/proc/stat": _host_stat,
    "/proc/meminfo": _host_memory,
}
