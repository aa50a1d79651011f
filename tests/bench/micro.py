"""What one recorded call costs, in ns: forward, marks of backward, optimizer step, collective over two ranks.

    python tests/bench/micro.py [--quick] [--minutes 0.7] [--python PYTHON ...] [--write]

The agent is in a job that makes one kind of call; its taps are put in and taken out again, cell by cell as step_time.py
does it (for collectives the agent itself); the difference of the median steps, over the calls in one.
Without --python: every CPython of this machine that has torch.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import page
from arms import EVERYTHING, Arm, Inside, Job, Ours
from cells import Measured, for_seconds, measured
from statistics_of_pairs import Interval, difference_interval, interval

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from delivering import interpreters  # noqa: E402

SIZES = {"forward": (500, 40, 10), "marked": (500, 25, 8), "backward": (500, 15, 5), "optimizer": (100, 20, 5)}
COLLECTIVE = ("collective", (20, 40, 10))  # calls in a step; steps of a block; warm ones before it


def with_torch() -> list[str]:
    """This Python, and each other one of the machine that can import torch."""
    found = {sys.version_info[:2]: sys.executable}
    for version, python in interpreters():
        major, minor = map(int, version.split("."))
        if (major, minor) not in found and not subprocess.run(
            [python, "-c", "import torch"], capture_output=True
        ).returncode:
            found[major, minor] = python
    return [python for _, python in sorted(found.items())]


def differences(
    kind: str, size: tuple[int, int, int], python: str, options: argparse.Namespace, arm: str = "everything"
) -> list[tuple[float, float]]:
    """(with, without) of each cell, in ns a call."""
    calls, steps, warm = size
    distributed = kind == COLLECTIVE[0]
    agent = Ours(options.probe, ("sample=1",))
    ours: dict[str, Arm] = {EVERYTHING: agent if distributed else Inside(arm, agent=True)}
    until = for_seconds(5 if options.quick else 60 * options.minutes, 2 if options.quick else 10)
    with Job(kind, python, ranks=2 if distributed else 1) as job:
        if not distributed:
            agent.put(job)
        seen: Measured = measured({False: job}, ours, steps, warm, until)
    return [(with_it / calls, without / calls) for with_it, without in seen.medians[EVERYTHING]]


def costs(python: str, options: argparse.Namespace) -> list[tuple[str, Interval]]:
    pairs = {kind: differences(kind, size, python, options) for kind, size in [*SIZES.items(), COLLECTIVE]}
    pairs["row"] = differences("forward", SIZES["forward"], python, options, "without backward")
    each = {kind: [with_it - without for with_it, without in pairs[kind]] for kind in pairs}
    without_marks, without_firing = (
        difference_interval(pairs["forward"]).value,
        difference_interval(pairs["marked"]).value,
    )
    return [
        ("forward call, recorded (backward=off)", interval(each["row"])),
        ("forward call, its nodes looked for as well", interval(each["forward"])),
        ("its marks of backward, set", interval([ns - without_marks for ns in each["marked"]])),
        ("its marks of backward, fired", interval([ns - without_firing for ns in each["backward"]])),
        ("optimizer step, recorded", interval(each["optimizer"])),
        ("collective on 2 ranks of gloo, recorded", interval(each["collective"])),
        ("the same collective itself", interval([without for _, without in pairs["collective"]])),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two cells of each, to see that it works; writes nothing")
    parser.add_argument("--minutes", type=float, default=0.7, help="for each kind of call")
    parser.add_argument("--python", nargs="+", default=None)
    parser.add_argument("--probe", default=str(Path(sys.executable).with_name("probe")))
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    parts = []
    for python in options.python or with_torch():
        rows = costs(python, options)
        for what, ns in rows:
            print(f"{what:42} {page.shown(ns, 0)} ns, {ns.pairs} cells", flush=True)
        table = page.table(["", "ns (95 % bootstrap interval)"], [[what, page.shown(ns, 0)] for what, ns in rows])
        parts.append(f"{page.circumstances(python, ('torch',))}\n\n{table}")
    if options.write and not options.quick:
        page.write("single calls", "\n\n".join(parts))


if __name__ == "__main__":
    main()
