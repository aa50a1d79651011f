"""Step time of every workload with each of the arms, over the bare step: all interleaved in one go.

    python tests/bench/step_time.py [--quick] [--minutes 5] [--only WORKLOAD,…] [--arms ARM,…] [--python PATH] [--write]

A cell is some bare steps, twice as many with one arm, and bare ones again, or the other way round; its ratio is of the
medians.  Arms come in a random order, round after round.  --python is one that has torch, transformers and `probing`.
--write puts the tables into docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import page
from arms import ARMS, PEER, Arm, Inside, Job, WorkerEnded, arms
from cells import Measured, for_seconds, measured
from sizes import SIZES, Size
from statistics_of_pairs import Interval, ratio_interval

QUICK_SECONDS, QUICK_ROUNDS, ROUNDS = 8.0, 2, 20


@contextmanager
def jobs_for(workload: str, python: str, chosen: dict[str, Arm]) -> Iterator[dict[bool, Job]]:
    """The job without and, where an arm asks for it, the job with the peer in it."""
    with Job(workload, python) as job:
        if not any(arm.peer for arm in chosen.values()):
            yield {False: job}
            return
        with Job(workload, python, **PEER) as with_peer:
            yield {False: job, True: with_peer}


def possible(workload: str, python: str, arm: Arm) -> bool:
    """Whether the job survives it: torch refuses full backward hooks where a module works in place on its input."""
    if not isinstance(arm, Inside):
        return True
    with Job(workload, python, **(PEER if arm.peer else {})) as job:
        try:
            job.block(2)
            arm.put(job)
            job.block(5)
            arm.take(job)
        except WorkerEnded:
            return False
    return True


def of_workload(name: str, size: Size, options: argparse.Namespace) -> Measured:
    every = arms(options.probe)
    chosen = {arm: every[arm] for arm in options.arms.split(",") if possible(name, options.python, every[arm])}
    seconds = QUICK_SECONDS if options.quick else 60 * options.minutes
    until = for_seconds(seconds, QUICK_ROUNDS if options.quick else ROUNDS)
    with jobs_for(name, options.python, chosen) as jobs:
        return measured(jobs, chosen, size.steps, size.warm, until)


def said(name: str, result: Measured, columns: list[str]) -> None:
    print(f"{name}: {result.bare_ns / 1e6:.3f} ms bare, {result.minutes:.1f} minutes", flush=True)
    for arm in columns:
        pairs = result.medians.get(arm)
        if pairs is None:
            print(f"    {arm:20} the job fails")
            continue
        of_medians, of_means = ratio_interval(pairs), ratio_interval(result.means[arm])
        print(f"    {arm:20} {page.shown(of_medians)}  whole blocks {page.shown(of_means)}  {len(pairs)} cells")
    width = max(ratio_interval(pairs).half_width for pairs in result.medians.values())
    print(f"    widest half interval {width:.2%}, {result.minutes / len(columns):.2f} minutes an arm", flush=True)


def tables(results: dict[str, Measured], columns: list[str]) -> str:
    """Two tables, one line a workload: ratios of medians, and of whole blocks."""

    def line(name: str, result: Measured, pairs: dict[str, list[tuple[float, float]]]) -> list[str]:
        cells: list[Interval | None] = [ratio_interval(pairs[arm]) if arm in pairs else None for arm in columns]
        return [SIZES[name].title, f"{result.bare_ns / 1e6:.2f} ms", *map(page.shown, cells)]

    header = ["workload", "bare step", *columns]
    medians = page.table(header, [line(name, each, each.medians) for name, each in results.items()])
    means = page.table(header, [line(name, each, each.means) for name, each in results.items()])
    cells = sorted({len(pairs) for each in results.values() for pairs in each.medians.values()})
    return (
        f"Ratio of step times with it over without it (95 % bootstrap interval), {cells[0]} to {cells[-1]} cells each."
        f" The median step:\n\n{medians}\n\nWhole blocks, so that what comes now and then counts too:\n\n{means}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two rounds of each, to see that it works; writes nothing")
    parser.add_argument("--minutes", type=float, default=5.0, help="for each workload")
    parser.add_argument("--only", default=",".join(SIZES))
    parser.add_argument("--arms", default=",".join(ARMS))
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--probe", default=str(Path(sys.executable).with_name("probe")))
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    columns, results = options.arms.split(","), {}
    for name in options.only.split(","):
        results[name] = of_workload(name, SIZES[name], options)
        said(name, results[name], columns)
    if options.write and not options.quick:
        versions = page.circumstances(options.python, ("torch", "transformers", "probing"))
        page.write("step times", f"{versions}\n\n{tables(results, columns)}")


if __name__ == "__main__":
    main()
