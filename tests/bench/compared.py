"""`compare` on pairs of runs: no difference where there is none, and planted ones found, with the right sign.

    python tests/bench/compared.py simulate [--pairs 200] [--steps 400] [--runs-a-side 1] [--runs-differ 0.7]
    python tests/bench/compared.py record DIR [--pairs 40] [--steps 400] [--sleep-ms 20] [--beside 2]   an hour
    python tests/bench/compared.py judge DIR [--runs-a-side 1]

record starts short jobs and writes the tables of each into a folder of its own, DIR/PERCENT-NUMBER; judge compares
these.  The jobs are real-time processes (chrt), which needs the right to be that: they get a core at once, as a rank on
a host of its own does; what else the host does shows in the figures all the same.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from planted import Planted
from pyarrow import parquet
from simulated_runs import Kind, run

from probe.diagnose.compare.compare import compare
from probe.diagnose.compare.report import Compared
from probe.diagnose.compare.run import Run
from probe.errors import ProbeError
from target import PROBE, Target

JOB = Path(__file__).parent / "compared_job.py"
PLANTED = (0, 2, 5, 10)  # percent
Pair = tuple[list[Run], list[Run]]
TABLES = (
    "python.step_trace", "python.torch_trace", "python.nccl_trace", "python.memory_trace", "python.dataloader_trace",
    "python.iterator_trace", "host.process_trace", "probe.agents",
)  # fmt: skip


def main() -> int:
    options = arguments()
    if options.what == "record":
        return record(options)
    runs = options.runs_a_side
    if options.what == "simulate":
        return judge(lambda percent: simulated(percent, options))
    return judge(lambda percent: recorded(options.folder, percent, runs))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("simulate", "record", "judge"))
    parser.add_argument("folder", type=Path, nargs="?", default=Path("runs"))
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--sleep-ms", type=float, default=20.0, help="in which a step waits as for a device")
    parser.add_argument("--beside", type=int, default=2, help="jobs at a time")
    parser.add_argument("--runs-a-side", type=int, default=1)
    parser.add_argument("--runs-differ", type=float, default=0.7, help="percent by which simulated ones do")
    return parser.parse_args()


def record(options: argparse.Namespace) -> int:
    """Two runs without a difference and one of each other kind for each pair, in turns: load that comes meets all."""
    wanted = [(kind, number) for number in range(options.pairs) for kind in PLANTED]
    wanted += [(0, options.pairs + number) for number in range(options.pairs)]
    wanted.sort(key=lambda each: each[1] % options.pairs)

    def one(run: tuple[int, int]) -> None:
        folder = options.folder / "{}-{}".format(*run)
        if not folder.exists():
            try:
                kept(run[0], options.sleep_ms, options.steps, folder)
            except (AssertionError, subprocess.CalledProcessError, ProbeError) as error:  # the next call tries again
                print(f"{folder.name} failed: {error}", flush=True)

    with ThreadPoolExecutor(options.beside) as beside:
        list(beside.map(one, wanted))
    return 0


def kept(percent: int, sleep_ms: float, steps: int, folder: Path) -> None:
    """The tables of a job after so many steps, a file each."""
    import probe

    output = folder.with_suffix(".txt")
    output.parent.mkdir(parents=True, exist_ok=True)
    target = Target((sys.executable, str(JOB), str(percent), str(sleep_ms)), output, {})
    try:
        target.wait_for("ready")
        subprocess.run(["chrt", "--all-tasks", "--rr", "--pid", "1", str(target.pid)], check=True)
        subprocess.run([PROBE, "attach", "--no-server", str(target.pid)], check=True, capture_output=True)
        with probe.connect(str(target.pid)) as job:
            while (
                job.query("SELECT COALESCE(MAX(step), 0) AS last FROM python.step_trace").to_pylist()[0]["last"] < steps
            ):
                time.sleep(1)
            found = {name: job.query(f"SELECT * FROM {name}").table for name in TABLES}
    finally:
        target.end()
    folder.mkdir()
    for name, rows in found.items():
        parquet.write_table(rows, folder / f"{name}.parquet")
    print(folder.name, f"load {os.getloadavg()[0]:.1f}", flush=True)


def judge(pairs: Callable[[int], Iterable[Pair]]) -> int:
    """A line a kind: how many pairs were told to differ, with which sign, and how many intervals hold the truth."""
    print(f"{'planted':>8}{'pairs':>7}{'any':>6}{'step':>6}{'wrong':>7}{'holds':>7}  half-width")
    right = [line(kind, [compare(*pair, rules=()) for pair in pairs(kind)]) for kind in PLANTED]
    return 0 if all(right) else 1


def simulated(percent: int, options: argparse.Namespace) -> Iterator[Pair]:
    usual = Kind(options.steps, runs_differ=options.runs_differ / 100)
    slower, runs = replace(usual, slower=percent / 100), options.runs_a_side
    for pair in range(options.pairs):
        seeds = [2 * runs * (1000 * percent + pair) + number for number in range(2 * runs)]
        yield [run(usual, seed) for seed in seeds[:runs]], [run(slower, seed) for seed in seeds[runs:]]


def recorded(folder: Path, percent: int, runs: int) -> Iterator[Pair]:
    """Each of so many runs a side, recorded next to each other, for over hours a machine becomes slower or faster.

    No run is in two pairs of a kind.
    """
    plain, planted = runs_of(folder, 0), runs_of(folder, percent)
    pairs = len(plain) // 2
    after = plain[pairs:] if percent == 0 else planted
    for at in range(0, min(pairs, len(after)) - runs + 1, runs):
        yield [opened(each) for each in plain[at : at + runs]], [opened(each) for each in after[at : at + runs]]


def runs_of(folder: Path, kind: int) -> list[Path]:
    """By number, whole ones only."""
    found = [each for each in folder.glob(f"{kind}-*") if (each / f"{TABLES[-1]}.parquet").exists()]
    return sorted(found, key=lambda each: int(each.name.partition("-")[2]))


def opened(folder: Path) -> Run:
    planted = Planted(folder.name)
    for name in TABLES:
        planted.database.execute(f"INSERT INTO {name} BY NAME SELECT * FROM '{folder}/{name}.parquet'")
    return Run(planted)


def line(kind: int, told: Sequence[Compared]) -> bool:
    truth = 1 + kind / 100
    steps = [each.step for each in told]
    any_, found = sum(bool(each.differing) for each in told), sum(bool(step.differs) for step in steps)
    wrong = sum(bool(step.differs) and (step.ratio or 1) < 1 for step in steps) if kind else 0
    holds = sum((step.ratio_low or 0) <= truth <= (step.ratio_high or 9) for step in steps)
    wide = float(np.median([((step.ratio_high or 0) - (step.ratio_low or 0)) / 2 for step in steps])) if steps else 0.0
    print(f"{kind:>6} %{len(told):>7}{any_:>6}{found:>6}{wrong:>7}{holds:>7}  {wide:.1%}", flush=True)
    few = any_ <= 0.05 * len(told) if kind == 0 else kind < 5 or found >= 0.9 * len(told)
    return few and not wrong and holds >= 0.9 * len(told)


if __name__ == "__main__":
    sys.exit(main())
