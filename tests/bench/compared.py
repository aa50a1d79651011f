"""`compare` on pairs of real short jobs: no difference where there is none, and planted ones found.

    python tests/bench/compared.py record DIR [--pairs 40] [--steps 400] [--sleep-ms 20] [--beside 2]
    python tests/bench/compared.py judge DIR [--runs-a-side 1]

record writes the tables of each run into a folder of its own, DIR/PERCENT-NUMBER; judge compares these.  So many jobs run
beside each other, as real-time processes (chrt), which need the right to be that; what else the host does shows in
the figures all the same.  An hour for 40 pairs.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from planted import Planted
from pyarrow import parquet

from probe.diagnose.compare.compare import compare
from probe.diagnose.compare.report import Compared
from probe.diagnose.compare.run import Run

from target import PROBE, Target

JOB = Path(__file__).parent / "compared_job.py"
PLANTED = (0, 2, 5, 10)  # percent
REALTIME = ("chrt", "--rr", "1")
TABLES = (
    "python.step_trace", "python.torch_trace", "python.nccl_trace", "python.memory_trace", "python.dataloader_trace",
    "python.iterator_trace", "host.process_trace", "probe.agents",
)  # fmt: skip


def main() -> int:
    options = arguments()
    return record(options) if options.what == "record" else judge(options.folder, options.runs_a_side)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("record", "judge"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--sleep-ms", type=float, default=20.0, help="in which a step waits as for a device")
    parser.add_argument("--beside", type=int, default=2, help="jobs at a time")
    parser.add_argument("--runs-a-side", type=int, default=1)
    return parser.parse_args()


def record(options: argparse.Namespace) -> int:
    """Two runs without a difference and one of each other kind for each pair, in turns: load that comes meets all."""
    wanted = [(kind, number) for number in range(options.pairs) for kind in PLANTED]
    wanted += [(0, options.pairs + number) for number in range(options.pairs)]
    wanted.sort(key=lambda each: each[1] % options.pairs)

    def one(run: tuple[int, int]) -> None:
        folder = options.folder / "{}-{}".format(*run)
        if not folder.exists():
            kept(run[0], options.sleep_ms, options.steps, folder)

    with ThreadPoolExecutor(options.beside) as beside:
        list(beside.map(one, wanted))
    return 0


def kept(percent: int, sleep_ms: float, steps: int, folder: Path) -> None:
    """The tables of a job after so many steps, a file each."""
    import probe

    output = folder.with_suffix(".txt")
    output.parent.mkdir(parents=True, exist_ok=True)
    target = Target((*REALTIME, sys.executable, str(JOB), str(percent), str(sleep_ms)), output, {})
    try:
        target.wait_for("ready")
        subprocess.run([PROBE, "attach", "--no-server", str(target.pid)], check=True, capture_output=True)
        with probe.connect(str(target.pid)) as job:
            while job.query("SELECT COALESCE(MAX(step), 0) AS last FROM python.step_trace").to_pylist()[0]["last"] < steps:
                time.sleep(1)
            found = {name: job.query(f"SELECT * FROM {name}").table for name in TABLES}
    finally:
        target.end()
    folder.mkdir()
    for name, rows in found.items():
        parquet.write_table(rows, folder / f"{name}.parquet")
    print(folder.name, f"load {os.getloadavg()[0]:.1f}", flush=True)


def judge(folder: Path, runs_a_side: int) -> int:
    """A line a kind: how many pairs were told to differ, with which sign, and how many intervals hold the truth."""
    print(f"{'planted':>8}{'pairs':>7}{'any':>6}{'step':>6}{'wrong':>7}{'holds':>7}  half-width")
    right = []
    for kind in PLANTED:
        told = [compare(*pair) for pair in pairs(folder, kind, runs_a_side)]
        right.append(line(kind, told))
    return 0 if all(right) else 1


def pairs(folder: Path, kind: int, runs: int) -> Iterator[tuple[list[Run], list[Run]]]:
    """Each of so many runs a side, none of them in two pairs of a kind."""
    before, after = runs_of(folder, 0), runs_of(folder, kind)
    if kind == 0:
        before, after = before[::2], before[1::2]
    for at in range(0, min(len(before), len(after)) - runs + 1, runs):
        yield [opened(each) for each in before[at : at + runs]], [opened(each) for each in after[at : at + runs]]


def runs_of(folder: Path, kind: int) -> list[Path]:
    """In the order in which they ran, whole ones only."""
    found = [each for each in folder.glob(f"{kind}-*") if (each / f"{TABLES[-1]}.parquet").exists()]
    return sorted(found, key=lambda each: each.stat().st_mtime)


def opened(folder: Path) -> Run:
    planted = Planted(folder.name)
    for name in TABLES:
        planted.database.execute(f"INSERT INTO {name} BY NAME SELECT * FROM '{folder}/{name}.parquet'")
    return Run(planted)


def line(kind: int, told: Sequence[Compared]) -> bool:
    truth = 1 + kind / 100
    steps = [each.step for each in told]
    any_, found = sum(bool(each.differing) for each in told), sum(bool(step.differs) for step in steps)
    wrong = sum(bool(step.differs) and (step.ratio or 1) < 1 for step in steps)
    holds = sum((step.ratio_low or 0) <= truth <= (step.ratio_high or 9) for step in steps)
    wide = float(np.median([((step.ratio_high or 0) - (step.ratio_low or 0)) / 2 for step in steps])) if steps else 0.0
    print(f"{kind:>6} %{len(told):>7}{any_:>6}{found:>6}{wrong:>7}{holds:>7}  {wide:.1%}", flush=True)
    few = any_ <= 0.05 * len(told) if kind == 0 else kind < 5 or found >= 0.9 * len(told)
    return few and not wrong and holds >= 0.9 * len(told)


if __name__ == "__main__":
    sys.exit(main())
