"""A recorder that flushes every second, in a process that can be killed: `recorder.py PID FOLDER WRITE_S STANDS_S`."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from threading import Event

from probe.record.recorder import Order, Recorder, agents_of

NAME = "exp7"


def begun(pid: int, folder: Path, write_s: float = 1.0, stands_s: float = 30.0) -> subprocess.Popen[str]:
    """One that records, writes tables so often, and asks a job that stands for so long why; stderr has its events."""
    words = [sys.executable, __file__, str(pid), str(folder), str(write_s), str(stands_s)]
    recorder = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    assert recorder.stderr is not None and any("begins" in line for line in recorder.stderr)
    return recorder


def main(pid: str, folder: str, write_s: str, stands_s: str) -> None:
    stop = Event()
    signal.signal(signal.SIGINT, lambda *_: stop.set())
    order = Order(
        Path(folder), NAME, flush_s=1.0, write_s=float(write_s), soon_s=float(write_s), stands_s=float(stands_s)
    )
    Recorder(agents_of(pid), order, lambda line: print(line, file=sys.stderr, flush=True)).run(stop.wait)


if __name__ == "__main__":
    main(*sys.argv[1:])
