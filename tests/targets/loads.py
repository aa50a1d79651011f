"""Uses a known part of the machine: target of tests of the machine tables.

    python loads.py FOLDER

A quarter of one core on one thread, 256 MB of memory, and 8 MB a second read from FOLDER's disk, past the page cache.
Prints its own figures as JSON, a line eight times a second: wall clock, CPU seconds, bytes read, threads.
"""

import json
import mmap
import os
import sys
import threading
import time

CPU_SHARE, PERIOD_S, READ_BYTES, HELD_BYTES = 0.25, 0.1, 1 << 20, 256 << 20


def burn() -> None:
    """A quarter of each tenth of a second."""
    while True:
        start, used = time.perf_counter(), time.thread_time()
        while time.thread_time() - used < CPU_SHARE * PERIOD_S:
            pass
        time.sleep(max(0.0, PERIOD_S - (time.perf_counter() - start)))


def main() -> None:
    path = os.path.join(sys.argv[1], "data")
    with open(path, "wb") as file:
        file.write(os.urandom(READ_BYTES))
        file.flush()
        os.fsync(file.fileno())
    try:
        data = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError:  # a file system that knows no such thing
        data = -1
    held = bytearray(HELD_BYTES)
    held[:: mmap.PAGESIZE] = b"x" * len(held[:: mmap.PAGESIZE])
    page = mmap.mmap(-1, READ_BYTES)
    threading.Thread(target=burn, daemon=True).start()
    read, due = 0, time.perf_counter()
    print("ready", flush=True)
    while True:
        if data >= 0:
            read += os.preadv(data, [page], 0)
        figures = {"time": time.time(), "cpu": time.process_time(), "read": read}
        print(json.dumps(figures | {"threads": len(os.listdir("/proc/self/task"))}), flush=True)
        due += 1 / 8
        time.sleep(max(0.0, due - time.perf_counter()))


if __name__ == "__main__":
    main()
