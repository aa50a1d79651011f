"""What an attach costs: wall time of the command, and the training's longest step meanwhile.

    python tests/bench/attach.py [--rounds 10] [--probe probe]

Attaches to the acceptance job and detaches, again and again.  A round's longest step is compared with the 95th
percentile of all steps outside attaches and detaches.
"""

from __future__ import annotations

import argparse
import struct
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles

HERE = Path(__file__).resolve().parent


class Job:
    """The acceptance job as it runs by itself; a block is waited for, not asked for."""

    def __init__(self, folder: str) -> None:
        self.times = Path(folder, "times")
        self.times.touch()
        command = [sys.executable, str(HERE / "timed_job.py"), str(self.times)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def ends(self) -> list[float]:
        data = self.times.read_bytes()
        return list(struct.unpack(f"<{len(data) // 8}d", data[: len(data) // 8 * 8]))

    def wait_for(self, steps: int) -> None:
        last = len(self.ends()) + steps
        while len(self.ends()) < last:
            time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--probe", default=str(Path(sys.executable).with_name("probe")))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        job = Job(folder)
        try:
            job.wait_for(20)
            walls, windows = [], []
            for _ in range(options.rounds):
                job.wait_for(30)
                for words in (["attach", str(job.process.pid)], [str(job.process.pid), "detach"]):
                    begin = time.perf_counter()
                    subprocess.run([options.probe, *words], check=True, stdout=subprocess.DEVNULL)
                    windows.append((begin, time.perf_counter()))
                    if words[0] == "attach":
                        walls.append(windows[-1][1] - begin)
                    job.wait_for(3)
            ends = job.ends()
        finally:
            job.process.kill()
            job.process.wait()
    steps = list(pairwise(ends))
    attaches = windows[::2]
    during = [max(b - a for a, b in steps if b > begin and a < end) for begin, end in attaches]
    usual = [b - a for a, b in steps if not any(b > begin and a < end for begin, end in windows)]
    p95 = quantiles(usual, n=20)[-1]
    print(f"attach {median(walls):.3f} s wall, median of {len(walls)} (longest {max(walls):.3f} s)")
    over = (median(during) - p95) * 1e3
    print(f"longest step during it {median(during) * 1e3:.1f} ms, median of {len(during)}")
    print(f"usual step {median(usual) * 1e3:.1f} ms, p95 {p95 * 1e3:.1f} ms: {over:.1f} ms over it")


if __name__ == "__main__":
    main()
