"""Attaching beside other tools that do: what each does to a process in each state, and to one under stress.

    python tests/bench/peers.py [--rounds 3]        about ten minutes; memray wants gdb or lldb on the machine

The others are installed into an environment of their own, in a temporary folder; the targets run in it, since memray
must be found there.  A tool has 25 seconds a time.  Good is: it did what it is for, the target lives, no thread of it
stands; else what went wrong.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from page import table
from until import states

from target import PROBE, TARGETS, Target

PATIENCE_S = 25
STATES = ("sleep", "lock", "epoll", "pipe", "vfork", "spin", "native_spin", "gil_held", "busy.py", "adversary.py")
PEERS = ("memray", "hypno", "py-spy")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tools, versions = installed(Path(folder))
        rows = [
            [state, *(outcome(command, state, options.rounds, Path(folder)) for command in tools.values())]
            for state in STATES
        ]
    print(table(["", *(f"{name} {versions[name]}" for name in tools)], rows))
    return 0


def installed(folder: Path) -> tuple[dict[str, Callable[[int], list[str]]], dict[str, str]]:
    """Tool -> its command for a pid, and their versions."""
    subprocess.run([sys.executable, "-m", "venv", folder / "peers"], check=True)
    bin = folder / "peers" / "bin"
    subprocess.run([bin / "pip", "install", "--quiet", *PEERS], check=True)
    asked = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
    told = subprocess.run([bin / "python", "-c", asked, *PEERS], check=True, capture_output=True, text=True).stdout
    commands: dict[str, Callable[[int], list[str]]] = {
        "probe": lambda pid: [str(PROBE), "attach", str(pid)],
        "memray": lambda pid: [str(bin / "memray"), "attach", "-o", str(folder / f"{time.monotonic_ns()}"), str(pid)],
        "hypno": lambda pid: [str(bin / "hypno"), str(pid), "import os"],
        "py-spy": lambda pid: [str(bin / "py-spy"), "dump", "--pid", str(pid)],
    }
    return commands, {"probe": version("torch-probe"), **dict(zip(PEERS, told.split(), strict=True))}


def outcome(command: Callable[[int], list[str]], state: str, rounds: int, folder: Path) -> str:
    """`3/3, 41 ms`, or how often and the first thing that went wrong."""
    times, wrong = [], []
    for _ in range(rounds):
        words = (state,) if state.endswith(".py") else ("waiting.py", state)
        python = str(folder / "peers" / "bin" / "python")
        target = Target((python, str(TARGETS / words[0]), *words[1:]), folder / "output", {})
        try:
            target.wait_for("ready")
            time.sleep(0.2)
            began = time.monotonic()
            failure = used(command(target.pid)) or harm(target)
            times.append((time.monotonic() - began) * 1e3)
            wrong += [failure] if failure else []
        finally:
            target.end()
    good = rounds - len(wrong)
    return f"{good}/{rounds}, {statistics.median(times):.0f} ms" + (f": {wrong[0]}" if wrong else "")


def used(command: list[str]) -> str:
    """What went wrong with the tool itself."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        return f"no end in {PATIENCE_S} s"
    last = (done.stderr or done.stdout).strip().rpartition("\n")[2]
    return last[:100].replace("|", "/") if done.returncode else ""


def harm(target: Target) -> str:
    """What became of the target, a moment later."""
    time.sleep(0.3)
    if not target.alive:
        return f"the target ended ({target.process.returncode})"
    if "broken" in target.output:
        return "the target's results are wrong"
    standing = sum(letter in "tT" for letter in states(target.pid))
    return f"{standing} threads stand" if standing else ""


if __name__ == "__main__":
    sys.exit(main())
