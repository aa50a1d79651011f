"""A recorder that flushes every second, in a process that can be killed: `recorder.py PID FOLDER`."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from threading import Event

from probe.record.recorder import Order, Recorder, agents_of

NAME = "exp7"


def begun(pid: int, folder: Path) -> subprocess.Popen[str]:
    """One that records; stderr has a line for each event."""
    words = [sys.executable, __file__, str(pid), str(folder)]
    recorder = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    assert recorder.stderr is not None and any("begins" in line for line in recorder.stderr)
    return recorder


def main(pid: str, folder: str) -> None:
    stop = Event()
    signal.signal(signal.SIGINT, lambda *_: stop.set())
    order = Order(Path(folder), NAME, flush_s=1.0)
    Recorder(agents_of(pid), order, lambda line: print(line, file=sys.stderr, flush=True)).run(stop.wait)


if __name__ == "__main__":
    main(*sys.argv[1:])
