"""host.process_trace: one row per second: what the process and its host are doing."""

from __future__ import annotations

from ... import streams
from ...derive.partition import Partition
from ...derive.samples import Samples, common
from ...schema import COMMON, Column, Columns
from ...streams import SAMPLES
from ..declaration import DONE, Table

_MB = 1 << 20


def derive(part: Partition) -> Columns:
    samples = Samples(part, streams.PROCESS)
    level, rate, growth = samples.level, samples.rate, samples.growth
    return {
        **common(part, samples.times),
        "cpu_pct": lambda: (rate(streams.CPU_NS) * (100 / 1e9)).arrow(),
        "core_wait_pct": lambda: (rate(streams.CORE_WAIT_NS) * (100 / 1e9)).arrow(),
        "rss_mb": lambda: (level(streams.RSS_BYTES) * (1 / _MB)).arrow(),
        "read_mb_s": lambda: (rate(streams.READ_BYTES) * (1 / _MB)).arrow(),
        "write_mb_s": lambda: (rate(streams.WRITTEN_BYTES) * (1 / _MB)).arrow(),
        "threads": lambda: level(streams.THREADS).arrow(),
        "context_switches_s": lambda: (rate(streams.VOLUNTARY_SWITCHES) + rate(streams.INVOLUNTARY_SWITCHES)).arrow(),
        "major_faults_s": lambda: rate(streams.MAJOR_FAULTS).arrow(),
        "host_cpu_pct": lambda: growth(streams.HOST_IDLE_TICKS).share(growth(streams.HOST_TICKS)).rest().arrow(),
        "host_memory_used_pct": lambda: (
            level(streams.HOST_MEMORY_AVAILABLE_KB).share(level(streams.HOST_MEMORY_KB)).rest().arrow()
        ),
        "gil_wait_us": lambda: (level(streams.GIL_WAIT_NS) * 1e-3).arrow(),
    }


_FIRST = "The first second."
_IO = "The first second; /proc/self/io cannot be read."
_FILE = "The file cannot be read."

TABLE = Table(
    name="host.process_trace",
    doc="One row per rank and second, as soon as it is sampled: what the process and its host are doing.  Rates are "
    "over the time since the row before; data loader workers are not included.",
    columns=(
        *COMMON,
        Column("cpu_pct", "DOUBLE", "%", "CPU time of all threads of the process; 100 is one core.",
               "CLOCK_PROCESS_CPUTIME_ID", _FIRST),
        Column("core_wait_pct", "DOUBLE", "%", "Share of the time in which the main thread was ready to run and "
               "waited for a core, because other work was running.", "/proc/self/schedstat",
               "The first second; the file cannot be read."),
        Column("rss_mb", "DOUBLE", "MB", "Resident memory of the process (2^20 bytes).", "/proc/self/stat", _FILE),
        Column("read_mb_s", "DOUBLE", "MB/s",
               "Read from storage by the process; what the page cache served is not counted.",
               "read_bytes of /proc/self/io", _IO),
        Column("write_mb_s", "DOUBLE", "MB/s", "Written by the process, on its way to storage.",
               "write_bytes of /proc/self/io", _IO),
        Column("threads", "INTEGER", "", "Threads of the process.", "/proc/self/stat", _FILE),
        Column("context_switches_s", "DOUBLE", "1/s", "How often a thread of the process blocked or lost its core.",
               "getrusage", _FIRST),
        Column("major_faults_s", "DOUBLE", "1/s", "Page faults that had to read from storage.", "getrusage", _FIRST),
        Column("host_cpu_pct", "DOUBLE", "%",
               "Share of time in which the host's cores were busy; waiting for storage does not count.", "/proc/stat",
               "The first second; the file cannot be read."),
        Column("host_memory_used_pct", "DOUBLE", "%",
               "Share of the host's memory that is not available; a container's limit is not considered.",
               "/proc/meminfo", _FILE),
        Column("gil_wait_us", "DOUBLE", "µs", "How long the agent's thread waited for the GIL after sleeping for 0.1 "
               "ms, which is what any thread of the process waits to run Python.  One try a second, accurate to about "
               "0.1 ms; 0 if it did not block.", "clock around the nap, voluntary context switches of the thread"),
    ),
    streams=(SAMPLES,),
    derive=derive,
    of_each_rank=True,
    final=DONE,
    taps=("process",),
    question="Does the process wait for a core, for the GIL, or for memory?",
    example="SELECT rank, AVG(cpu_pct) AS cpu_pct, AVG(core_wait_pct) AS core_wait_pct, AVG(gil_wait_us) AS "
    "gil_wait_us, MAX(rss_mb) AS rss_mb FROM host.process_trace GROUP BY rank ORDER BY rank",
)  # fmt: skip
