"""Shares that `probe profile` tells of jobs whose shares are planted, against what the jobs measured of themselves.

    python tests/bench/profile_shares.py [--seconds 60] [--runs 3] [--py-spy PATH] [NAME …]

Ends with 1 if more than one in 24 is off by more than 3 points.  Chance alone: one standard deviation is 0.5 points in
60 s at 100 Hz, 1.0 in 15 s.  --py-spy: where it is; what it tells of each job is printed beside, of as long a window.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from planted_shares import JOBS

import probe
from target import PROBE

HERE = Path(__file__).resolve().parent
MOST_POINTS, ALLOWED = 3.0, 1 / 24
SQL = """SELECT phase, SUM(seconds) AS seconds FROM (SELECT seconds, CASE
WHEN stack LIKE '%phase_a (planted_shares.py:%' THEN 'a' WHEN stack LIKE '%phase_b (planted_shares.py:%' THEN 'b' END
AS phase FROM (SELECT seconds, array_to_string(stack, ' ') AS stack FROM python.profile
WHERE start_ns BETWEEN {} AND {})) GROUP BY 1"""


@contextlib.contextmanager
def job(name: str) -> Iterator[tuple[int, Path]]:
    """The pid of an attached job, and what it has measured."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(bytes(16))
        file.flush()
        process = subprocess.Popen(
            [sys.executable, str(HERE / "planted_shares.py"), name, file.name], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        with process:
            try:
                process.stdout.readline()
                subprocess.run([PROBE, "attach", str(process.pid)], check=True, capture_output=True)
                yield process.pid, Path(file.name)
            finally:
                process.kill()


def spent(path: Path) -> tuple[float, float]:
    a, b = struct.unpack("2d", path.read_bytes())
    return a, b


def run(name: str, seconds: float) -> tuple[float, float, float]:
    """The share of phase_a in per cent: as measured, as told; and the samples that could not be read, in per cent."""
    with job(name) as (pid, path), probe.connect(str(pid)) as connection:
        before = spent(path)
        (taken,) = connection.profile(seconds)
        after = spent(path)
        found = connection.query(SQL.format(taken.start_ns, taken.end_ns), open_steps=True).to_pylist()
    a, b = (now - then for now, then in zip(after, before, strict=True))
    told = {row["phase"]: row["seconds"] for row in found}
    return 100 * a / (a + b), 100 * told["a"] / (told["a"] + told["b"]), 100 * taken.not_read / taken.samples


def of_py_spy(path: str, name: str, seconds: float) -> tuple[float, float, float]:
    """As run(); what it does not give a stack of the job's phases for is not among its samples."""
    with job(name) as (pid, file), tempfile.NamedTemporaryFile("r") as out:
        before = spent(file)
        words = [path, "record", "--rate", "100", "--format", "raw", "--idle", "--pid", str(pid)]
        words += ["--duration", f"{seconds:.0f}", "--output", out.name]
        told = subprocess.run(words, check=True, capture_output=True, text=True)
        after = spent(file)
        counts = dict.fromkeys(("phase_a (planted", "phase_b (planted"), 0)
        for line in out:
            stack, _, count = line.rpartition(" ")
            for phase in counts:
                counts[phase] += int(count) if phase in stack else 0
    a, b = (now - then for now, then in zip(after, before, strict=True))
    samples, errors = map(int, re.findall(r"(?:Samples|Errors): (\d+)", told.stderr + told.stdout))
    in_a, in_b = counts.values()
    return 100 * a / (a + b), 100 * in_a / (in_a + in_b), 100 * errors / (samples + errors)


def say(name: str, measured: float, told: float, unread: float) -> None:
    print(f"{name:21} {measured:8.1f}% {told:6.1f}% {told - measured:+11.2f} {unread:8.2f}%", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=list(JOBS))
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--py-spy")
    wanted = parser.parse_args()
    off = []
    print(f"{'job':21} {'measured':>9} {'told':>7} {'points off':>11} {'not read':>9}")
    for name in wanted.names:
        for _ in range(wanted.runs):
            measured, told, unread = run(name, wanted.seconds)
            off.append(abs(told - measured))
            say(name, measured, told, unread)
        if wanted.py_spy:
            say(f"{name}, py-spy", *of_py_spy(wanted.py_spy, name, wanted.seconds))
    within = sum(points <= MOST_POINTS for points in off)
    print(f"{within} of {len(off)} within {MOST_POINTS:g} points")
    return len(off) - within > len(off) * ALLOWED


if __name__ == "__main__":
    sys.exit(main())
