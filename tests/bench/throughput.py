"""What a training loses that is attached to and left once a second: steps in windows with and without it, in turns.

    python tests/bench/throughput.py [--rounds 500]        about 17 minutes

A window is ten seconds of tests/targets/loading.py, which has two DataLoader workers.  Attaching has a process of its
own, as the command has.
"""

from __future__ import annotations

import argparse
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from statistics_of_pairs import ratio_interval

from target import TARGETS, Target

WINDOW_S, ROUNDS_A_WINDOW = 10.0, 10
CYCLING = Path(__file__).resolve().parent.parent / "cycling.py"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=500)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        times = Path(folder, "times")
        job = Target((sys.executable, str(TARGETS / "loading.py"), str(times)), Path(folder, "output"), {})
        try:
            job.wait_for("at 200 ")
            pairs = [pair(job.pid, times, turn) for turn in range(max(1, rounds // ROUNDS_A_WINDOW))]
        finally:
            job.end()
    found = ratio_interval(pairs)
    usual = median(quiet for _, quiet in pairs)
    print(
        f"figures: {len(pairs) * ROUNDS_A_WINDOW} attaches and detaches, one a second: {found.value:.3f} of the steps "
        f"of quiet windows ({found.low:.3f} to {found.high:.3f}), {len(pairs)} pairs, {usual:.0f} steps/s"
    )
    return 0


def pair(pid: int, times: Path, turn: int) -> tuple[float, float]:
    """Steps a second with and without attaches; every other time the other way round."""
    first, second = (window(pid, times, attached) for attached in ((True, False) if turn % 2 else (False, True)))
    return (first, second) if turn % 2 else (second, first)


def window(pid: int, times: Path, attached: bool) -> float:
    begin = time.perf_counter()
    if attached:
        command = [sys.executable, CYCLING, str(pid), str(ROUNDS_A_WINDOW), str(WINDOW_S / ROUNDS_A_WINDOW - 0.2)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    time.sleep(max(0.0, begin + WINDOW_S - time.perf_counter()))
    end = time.perf_counter()
    data = times.read_bytes()
    ends = struct.unpack(f"<{len(data) // 8}d", data[: len(data) // 8 * 8])
    return sum(begin < each <= end for each in ends) / (end - begin)


if __name__ == "__main__":
    sys.exit(main())
