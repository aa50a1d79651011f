"""Step time of every workload with each of the arms, over the bare step: all interleaved in one go.

    python tests/bench/step_time.py [--quick] [--minutes 5] [--only WORKLOAD,…] [--arms ARM,…] [--python PATH] [--write]

A cell is some bare steps, twice as many with one arm, and bare ones again, or the other way round; its ratio is of the
medians.  Arms come in a random order, round after round.  Our agent is attached once, by the command; "probe by
default" is what it comes to with one block in N sampled, N as the agent itself has chosen it.  --python is one that has
torch, transformers and `probing`.  --write puts the tables into docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import page
from arms import ARMS, BETWEEN, EVERYTHING, PEER, Arm, Inside, Job, Ours, WorkerEnded, arms
from cells import Measured, for_seconds, measured
from sizes import SIZES, Size
from statistics_of_pairs import Interval, mixed_interval, ratio_interval

QUICK_SECONDS, QUICK_ROUNDS, ROUNDS = 8.0, 2, 20
DEFAULT = "probe by default"


@contextmanager
def jobs_for(workload: str, python: str, chosen: dict[str, Arm]) -> Iterator[dict[bool, Job]]:
    """The job without and, where an arm asks for it, the job with the peer in it."""
    with Job(workload, python) as job:
        if not any(arm.peer for arm in chosen.values()):
            yield {False: job}
            return
        with Job(workload, python, **PEER) as with_peer:
            yield {False: job, True: with_peer}


def attached(job: Job, probe: str, size: Size, chosen: dict[str, Arm]) -> int:
    """Put the agent in, where an arm needs it, and have it choose how often it samples: that N, else 0."""
    if not any(arm.agent for arm in chosen.values()):
        return 0
    ours = Ours(probe)
    ours.put(job)
    job.block(10 * size.steps)
    return ours.every(job)


def possible(workload: str, python: str, arm: Arm) -> bool:
    """Whether the job survives it: torch refuses full backward hooks where a module works in place on its input."""
    if not isinstance(arm, Inside) or arm.agent:
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
    known = arms(options.probe)
    chosen = {arm: known[arm] for arm in options.arms.split(",") if possible(name, options.python, known[arm])}
    seconds = QUICK_SECONDS if options.quick else 60 * options.minutes
    until = for_seconds(seconds, QUICK_ROUNDS if options.quick else ROUNDS)
    with jobs_for(name, options.python, chosen) as jobs:
        every = attached(jobs[False], options.probe, size, chosen)
        result = measured(jobs, chosen, size.steps, size.warm, until)
    result.every = every
    return result


def intervals(pairs: dict[str, list[tuple[float, float]]], every: int) -> dict[str, Interval]:
    """Of each arm that was measured, and of what they come to."""
    found = {arm: ratio_interval(of_arm) for arm, of_arm in pairs.items()}
    if every and BETWEEN in pairs and EVERYTHING in pairs:
        found[DEFAULT] = mixed_interval(pairs[EVERYTHING], pairs[BETWEEN], every)
    return found


def said(name: str, result: Measured, columns: list[str]) -> None:
    sampled = f", one block in {result.every} sampled" if result.every else ""
    print(f"{name}: {result.bare_ns / 1e6:.3f} ms bare, {result.minutes:.1f} minutes{sampled}", flush=True)
    of_medians, of_means = intervals(result.medians, result.every), intervals(result.means, result.every)
    for arm in columns:
        one = of_medians.get(arm)
        whole = f"whole blocks {page.shown(of_means[arm])}  {one.pairs} cells" if one else ""
        print(f"    {arm:22} {page.shown(one)}  {whole}")
    width = max(one.half_width for one in of_medians.values())
    print(f"    widest half interval {width:.2%}, {result.minutes / len(columns):.2f} minutes an arm", flush=True)


def tables(results: dict[str, Measured], columns: list[str]) -> str:
    """Two tables, one line a workload: ratios of medians, and of whole blocks."""

    def line(name: str, result: Measured, pairs: dict[str, list[tuple[float, float]]]) -> list[str]:
        found = intervals(pairs, result.every)
        cells = [page.shown(found.get(arm)) for arm in columns]
        return [SIZES[name].title, f"{result.bare_ns / 1e6:.2f} ms", f"1 in {result.every}", *cells]

    header = ["workload", "bare step", "sampled", *columns]
    medians = page.table(header, [line(name, each, each.medians) for name, each in results.items()])
    means = page.table(header, [line(name, each, each.means) for name, each in results.items()])
    cells = sorted({len(pairs) for each in results.values() for pairs in each.medians.values()})
    return (
        "Ratio of step times with the arm to those without it (95 % bootstrap interval), "
        f"{cells[0]} to {cells[-1]} cells each. Medians of steps:\n\n"
        f"{medians}\n\nWhole blocks, which include costs that occur only now and then:\n\n{means}"
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
    unknown = {*options.arms.split(",")} - {*ARMS} or {*options.only.split(",")} - {*SIZES}
    if unknown:
        parser.error(f"{', '.join(unknown)}: arms are {', '.join(ARMS)}; workloads are {', '.join(SIZES)}")
    columns, results = [DEFAULT, *options.arms.split(",")], {}
    for name in options.only.split(","):
        results[name] = of_workload(name, SIZES[name], options)
        said(name, results[name], columns)
    if options.write and not options.quick:
        versions = page.circumstances(options.python, ("torch", "transformers", "probing"))
        page.write("step times", f"{versions}\n\n{tables(results, columns)}")


if __name__ == "__main__":
    main()
