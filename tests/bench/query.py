"""What a command costs, from the shell's prompt and back, and what a query over a million rows does.

    python tests/bench/query.py [--rounds 15] [--rows 1000000]        about two minutes

Whole commands are held against a Python that does nothing but import the libraries which they cannot do without, the
two in turn; what is told is the median of the ratios.  The million rows lie in an agent without a training (filled.py).
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import page
from statistics_of_pairs import Interval, ratio_interval

from target import PROBE, TARGETS

HERE = Path(__file__).resolve().parent
SMALL, LARGE = "import click, zmq", "import click, zmq, pyarrow.dataset, duckdb"
COUNT = "SELECT COUNT(*) FROM python.torch_trace"
GROUPS = "SELECT module, stage, AVG(duration) FROM python.torch_trace GROUP BY ALL"
LAST = "SELECT COUNT(*) FROM python.torch_trace WHERE step > (SELECT MAX(step) - 10 FROM python.torch_trace)"


@contextmanager
def running(*command: str) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """A process that says something once it is ready."""
    process = subprocess.Popen([sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid, process
    finally:
        process.kill()
        process.communicate()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--rows", type=int, default=1_000_000)
    options = parser.parse_args()
    rows = []
    with running(str(HERE / "filled.py"), str(options.rows)) as (pid, _):
        for what, more, wanted in (("no server", ["--no-server"], 1.5), ("from the server, the second time", [], 0.5)):
            for name, sql in (("COUNT(*)", COUNT), ("group-by", GROUPS)):
                words = [str(pid), "query", *more, sql]
                rows.append(compared(f"query, {name} of all rows, {what}", options.rounds, LARGE, words, wanted))
        rows.append(["the last ten steps of them", fetched(pid), "two chunks of 16,384 rows a stream"])
        rows.append(["all of them as a trace for Perfetto", f"{exported(pid):.1f} s", "10 s"])
        rows.append(["group-by over all rows in `probe sql`, the second time and later", warm(pid), "60 ms"])
    with running(str(TARGETS / "plain.py")) as (pid, _):
        subprocess.run([PROBE, "attach", str(pid)], check=True, stdout=subprocess.DEVNULL)
        for words in ([str(pid), "eval", "--now", "1"], ["list"], ["--help"]):
            rows.append(compared(" ".join(words[-2:]), options.rounds, SMALL, words, 2.5))
        few = [str(pid), "query", "--no-server", COUNT]
        rows.append(compared("query, COUNT(*) of no rows, no server", options.rounds, LARGE, few, 1.5))
    print(page.circumstances(sys.executable, ["duckdb", "pyarrow", "pyzmq", "click"]))
    print(page.table(["", "", "wanted: at most"], rows))
    return 0


def compared(what: str, rounds: int, imports: str, words: Sequence[str], wanted: float) -> list[str]:
    pairs = []
    for turn in range(rounds + 1):  # the first one warms up
        commands = [[str(PROBE), *words], [sys.executable, "-c", imports]]
        took = {id(each): seconds(each) for each in (commands if turn % 2 else commands[::-1])}
        pairs.append((took[id(commands[0])], took[id(commands[1])]))
    ratio: Interval = ratio_interval(pairs[1:])
    times = " against ".join(f"{median(each) * 1e3:.0f}" for each in zip(*pairs[1:], strict=True))
    return [what, f"{page.shown(ratio, 2)} x `{imports}`: {times} ms", f"{wanted} x"]


def seconds(command: Sequence[str]) -> float:
    begin = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - begin


def exported(pid: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        return seconds([str(PROBE), str(pid), "export", "--perfetto", str(Path(folder) / "trace")])


def fetched(pid: int) -> str:
    done = subprocess.run(
        [PROBE, str(pid), "query", "--explain-fetch", LAST], check=True, capture_output=True, text=True
    )
    lines = re.findall(r"^ *0  (\w+) +([\d,]+) +([\d.]+)", done.stderr, re.MULTILINE)
    return ", ".join(f"{rows} {stream}" for stream, rows, _ in lines)


def warm(pid: int) -> str:
    """By what the shell itself says that each statement took."""
    done = subprocess.run(
        [PROBE, str(pid), "sql"], input=f"{GROUPS};\n" * 12, check=True, capture_output=True, text=True
    )
    times = [int(found) for found in re.findall(r"rows?, (\d+) ms", done.stderr)]
    return f"{median(times[2:])} ms ({min(times[2:])} to {max(times[2:])}); the first {times[0]}, the second {times[1]}"


if __name__ == "__main__":
    sys.exit(main())
