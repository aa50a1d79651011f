"""Step time of the acceptance job with everything recorded, over the bare run.

    python tests/bench/overhead.py [--pairs 24] [--steps 60] [--probe probe]

One job runs throughout; attach and detach take turns, so that both halves of a pair see the same machine.  The
order within a pair alternates.  Steps during and right after an attach or detach are left out.
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
from statistics import median

from statistics_of_pairs import ratio_interval

HERE = Path(__file__).resolve().parent


class Job:
    def __init__(self, folder: str) -> None:
        self.times = Path(folder, "times")
        self.times.touch()
        command = [sys.executable, str(HERE / "timed_job.py"), str(self.times)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def ends(self) -> list[float]:
        data = self.times.read_bytes()
        return list(struct.unpack(f"<{len(data) // 8}d", data[: len(data) // 8 * 8]))

    def block(self, steps: int) -> float:
        """Median time of the next `steps` steps, after three that are let go."""
        first = len(self.ends()) + 3
        while len(self.ends()) < first + steps + 1:
            time.sleep(0.05)
        ends = self.ends()[first : first + steps + 1]
        return median(b - a for a, b in pairwise(ends))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=24)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--probe", default=str(Path(sys.executable).with_name("probe")))
    options = parser.parse_args()

    def probe(*words: str) -> None:
        subprocess.run([options.probe, *words], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    with tempfile.TemporaryDirectory() as folder:
        job = Job(folder)
        try:
            job.block(20)
            pid, pairs = str(job.process.pid), []
            for index in range(options.pairs):
                halves = {}
                for attached in (True, False) if index % 2 else (False, True):
                    if attached:
                        probe("attach", pid)
                    halves[attached] = job.block(options.steps)
                    if attached:
                        probe(pid, "detach")
                pairs.append((halves[True], halves[False]))
                print(
                    f"pair {index}: {halves[True] * 1e3:.2f} ms with, {halves[False] * 1e3:.2f} ms without", flush=True
                )
        finally:
            job.process.kill()
            job.process.wait()
    ratio, low, high = ratio_interval(pairs)
    bare = median(without for _, without in pairs) * 1e3
    print(f"step {bare:.2f} ms bare; ratio {ratio:.4f}, 95 % interval {low:.4f} to {high:.4f}, {len(pairs)} pairs")


if __name__ == "__main__":
    main()
