"""A Python loop that does nothing but read the clock, in a process with an agent and full rings: target of scan.py.

    python victim.py GAPS_FILE ROWS

Writes each gap of 0.1 ms or more to GAPS_FILE: its begin and end on the monotonic clock, how often the thread has slept
in it (it waited for the GIL), and for how long the agent's thread ran meanwhile; four little-endian 8-byte integers,
times in ns.
"""

import os
import struct
import sys
import threading
import time
from resource import RUSAGE_THREAD, getrusage

import probe

GAP_NS = 100_000


def fill(rows):
    agent = sys.modules["_probe_agent.agent.main"]._agent
    spans = agent.streams["spans"]
    for at in range(rows):
        spans.append(at * 1000, at * 1000 + 500, 1 + at % 50, 7, 1)


def main(path, rows):
    probe.start()
    fill(int(rows))
    record, clock = struct.Struct("<4q"), time.monotonic_ns
    while len(others := sys._current_frames().keys() - {threading.get_ident()}) != 1:
        time.sleep(0.01)  # for its first second the agent has parked threads, to learn how such a thread looks
    agents_clock = time.pthread_getcpuclockid(*others)
    with open(path, "ab", buffering=0) as gaps:
        os.write(1, b"ready\n")
        slept, ran = getrusage(RUSAGE_THREAD).ru_nvcsw, time.clock_gettime_ns(agents_clock)
        last = clock()
        while True:
            now = clock()
            if now - last >= GAP_NS:
                sleeps, runs = getrusage(RUSAGE_THREAD).ru_nvcsw - slept, time.clock_gettime_ns(agents_clock) - ran
                gaps.write(record.pack(last, now, sleeps, runs))
                # writing lets go of the GIL, too
                slept, ran = getrusage(RUSAGE_THREAD).ru_nvcsw, time.clock_gettime_ns(agents_clock)
                now = clock()
            last = now


if __name__ == "__main__":
    main(*sys.argv[1:])
