"""What probe does on this machine's GPU, in less than ten minutes and without a network: `make gpu`.

    python tests/gpu/first_ten_minutes.py [--write FILE] [--only NAME,…] [--seconds 570]

Under whatever torch is installed.  Its checks run in order of risk, each in processes of its own; what each has found
is written at once, so that a run that is cut off leaves what it knows.  The file is ready for docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import groupby
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "bench"), str(HERE.parents[1])]

import harm  # noqa: E402, F401
import recorded  # noqa: E402, F401
import torch  # noqa: E402
from rig import CHECKS, Check, Found, rig  # noqa: E402

BESIDE = max(2, (os.cpu_count() or 1) // 4)  # checks at once that need not be alone

Result = tuple[Check, Found, float]


def machine() -> list[str]:
    properties = torch.cuda.get_device_properties(0)
    device = f"{torch.cuda.device_count()} × {properties.name}, {properties.total_memory >> 20} MB"
    nccl = ".".join(map(str, torch.cuda.nccl.version()))
    versions = f"torch {torch.__version__}, CUDA {torch.version.cuda}, NCCL {nccl}, Python {platform.python_version()}"
    return [time.strftime("%Y-%m-%d"), device, versions, f"Linux {platform.release()}"]


def made(check: Check, folder: Path, devices: int) -> Result:
    start = time.monotonic()
    try:
        with rig(folder / check.name, devices) as one:
            found = check.run(one)
    except Exception:  # whatever it is, the other checks are still of use
        found = Found(False, traceback.format_exc().splitlines()[-30:])
    return check, found, time.monotonic() - start


def results(checks: list[Check], folder: Path, devices: int, end: float) -> Iterator[Result]:
    for alone, group in groupby(checks, key=lambda each: each.alone):
        with ThreadPoolExecutor(1 if alone else BESIDE) as pool:
            waiting = {pool.submit(made, each, folder, devices): each for each in group}
            for future in as_completed(waiting):
                yield future.result()
                if time.monotonic() > end:
                    for each in waiting:
                        each.cancel()
                    return


def page(found: list[Result], left: list[str]) -> str:
    words = {True: "as expected", False: "NOT as expected", None: "figure"}
    lines = [f"### First ten minutes: {'; '.join(machine())}", ""]
    for check, each, seconds in found:
        lines += [f"**{check.name}**: {words[each.holds]} ({seconds:.0f} s). Expected: {check.expected}"]
        lines += [f"If not: {check.otherwise}"] if each.holds is False else []
        lines += ["", *(f"    {line}" for line in each.lines), ""]
    return "\n".join([*lines, *([f"Not run: {', '.join(left)}"] if left else [])]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, default=Path("first_ten_minutes.md"))
    parser.add_argument("--only", default=",".join(each.name for each in CHECKS))
    parser.add_argument("--seconds", type=float, default=570, help="begin no check after so long")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("no CUDA device here: nothing was checked")
    checks = [each for each in CHECKS if each.name in args.only.split(",")]
    devices, found = torch.cuda.device_count(), list[Result]()
    with tempfile.TemporaryDirectory() as folder:
        for result in results(checks, Path(folder), devices, time.monotonic() + args.seconds):
            found.append(result)
            print(f"{result[0].name}: {result[1].holds} in {result[2]:.0f} s", flush=True)
            left = [each.name for each in checks if each not in [one for one, *_ in found]]
            args.write.write_text(page(found, left))
    print(args.write.read_text())
    sys.exit(any(each.holds is False for _, each, _ in found))


if __name__ == "__main__":
    main()
