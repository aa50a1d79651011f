"""What a training loses by being attached to and left: its steps in quarters of a second with and without, in turns.

    python tests/bench/throughput.py [--rounds 1000]        about 12 minutes

The training is tests/targets/loading.py, which has two DataLoader workers.  A window is long enough for a whole round
and for the loader to come to itself, and short beside the machine's wander, which is what hides one per cent of longer
ones.  What attaches is imported before the first round, as in `attach --follow`.
"""

from __future__ import annotations

import argparse
import struct
import sys
import tempfile
import time
from bisect import bisect_right
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from cycling import cycle
from statistics_of_pairs import interval

from target import TARGETS, Target

WINDOW_S, BETWEEN_S = 0.25, 0.1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1000)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        times = Path(folder, "times")
        job = Target((sys.executable, str(TARGETS / "loading.py"), str(times)), Path(folder, "output"), {})
        try:
            job.wait_for("at 200 ")
            windows = [pair(job.pid, turn) for turn in range(rounds)]
        finally:
            job.end()
        data = times.read_bytes()
    ends = struct.unpack(f"<{len(data) // 8}d", data[: len(data) // 8 * 8])
    pairs = [(steps(ends, *attached), steps(ends, *quiet)) for attached, quiet in windows]
    lost = interval([(1 - attached / quiet) * WINDOW_S * 1e3 for attached, quiet in pairs])
    print(
        f"figures: {rounds} attaches and detaches: {lost.value:.1f} ms of the training's time each ({lost.low:.1f} to "
        f"{lost.high:.1f}); one a second leaves {1 - lost.value / 1e3:.4f} of its steps ({1 - lost.high / 1e3:.4f} to "
        f"{1 - lost.low / 1e3:.4f}), {median(quiet for _, quiet in pairs):.0f} steps/s"
    )
    return 0


def pair(pid: int, turn: int) -> tuple[tuple[float, float], tuple[float, float]]:
    """Begin and end of a window with a round and of one without; every other time the other way round."""
    first, second = (window(pid, attached) for attached in ((True, False) if turn % 2 else (False, True)))
    return (first, second) if turn % 2 else (second, first)


def window(pid: int, attached: bool) -> tuple[float, float]:
    begin = time.perf_counter()
    if attached:
        cycle(pid)
    time.sleep(max(0.0, begin + WINDOW_S - time.perf_counter()))
    end = time.perf_counter()
    time.sleep(BETWEEN_S)
    return begin, end


def steps(ends: tuple[float, ...], begin: float, end: float) -> float:
    """Steps a second between two moments, the broken ones at both borders by their part."""
    return (progress(ends, end) - progress(ends, begin)) / (end - begin)


def progress(ends: tuple[float, ...], moment: float) -> float:
    done = bisect_right(ends, moment)
    before, after = ends[done - 1], ends[done]
    return done + (moment - before) / (after - before)


if __name__ == "__main__":
    sys.exit(main())
