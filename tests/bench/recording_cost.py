"""What `probe record` costs: CPU time of the recorder, all threads, for each rank, and bytes of files a rank and step.

python tests/bench/recording_cost.py [--ranks 2] [--sleep 0.035] [--seconds 180]

A job of tests/targets/loop.py over gloo is attached and recorded by the command.  After 15 s, in which the recorder
starts, its CPU time is read from /proc every ten seconds.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from forked import LAUNCHER

import probe
from target import PROBE, PYTHON, TARGETS, Target

_STARTS_S, _LOOK_S = 15.0, 10.0
STEPS = "SELECT COUNT(*) AS n, EPOCH(MAX(time) - MIN(time)) AS seconds FROM python.step_trace"


def cpu_s(pid: int) -> float:
    """utime and stime of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measured(pid: int, ranks: int, seconds: float) -> None:
    time.sleep(_STARTS_S)
    began, used = time.monotonic(), cpu_s(pid)
    while (passed := time.monotonic() - began) < seconds:
        time.sleep(min(_LOOK_S, seconds - passed))
        passed, spent = time.monotonic() - began, cpu_s(pid) - used
        print(f"{passed:4.0f} s: {100 * spent / passed / ranks:.3f} % of a core a rank", flush=True)


def main(ranks: int, sleep: float, seconds: float, place: Path) -> None:
    command = (PYTHON, str(LAUNCHER), str(ranks), str(TARGETS / "loop.py"), "--sleep", str(sleep))
    job, recorder = Target(command, place / "job.txt", {}), None
    try:
        job.wait_for("ready", times=ranks)
        subprocess.run([str(PROBE), "attach", str(job.pid)], check=True, capture_output=True)
        words = [str(PROBE), str(job.pid), "record", str(place / "runs")]
        recorder = subprocess.Popen(words, stderr=subprocess.DEVNULL)
        measured(recorder.pid, ranks, seconds)
        recorder.send_signal(signal.SIGINT)
        recorder.wait()
        with probe.connect(str(place / "runs")) as recording:
            (row,) = recording.query(STEPS)
    finally:
        job.end()
        if recorder is not None and recorder.poll() is None:
            recorder.kill()
    size = sum(path.stat().st_size for path in (place / "runs").rglob("*") if path.is_file())
    files = len(list((place / "runs").rglob("*.parquet")))
    rate, each = row["n"] / ranks / row["seconds"], size / row["n"] / 1e3
    print(f"{rate:.1f} steps/s, {each:.2f} KB a rank and step, {files} files")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--sleep", type=float, default=0.035, help="seconds between two steps")
    parser.add_argument("--seconds", type=float, default=180.0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        main(asked.ranks, asked.sleep, asked.seconds, Path(name))
