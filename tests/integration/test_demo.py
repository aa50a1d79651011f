"""`probe demo` shows what it promises and leaves nothing, however it ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from until import until

from target import PROBE


def demo(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(PROBE), "demo"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip


def left(folder: Path) -> list[str]:
    """What the demo left: files, and processes that have its TMPDIR."""
    return [path.name for path in folder.iterdir()] + [process.name for process in processes(folder)]


def processes(folder: Path) -> list[Path]:
    """Of the demo, in /proc: those that have its TMPDIR."""
    mark, found = f"TMPDIR={folder}".encode(), []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # ended, or not ours
            found += [process] if mark in (process / "environ").read_bytes() else []
    return found


def ranks_and_workers(folder: Path) -> list[str]:
    """Processes of the demo's job."""
    found = list[str]()
    for process in processes(folder):
        with suppress(OSError):
            found += [process.name] if b"demo_job.py" in (process / "cmdline").read_bytes() else []
    return found


def test_the_demo_shows_three_queries_an_eval_and_what_the_remedy_of_why_brings(short_folder: Path) -> None:
    with demo(short_folder) as process:
        out, err = process.communicate(timeout=250)
    assert process.returncode == 0, err
    assert out.count("attached  rank") == 2
    assert out.count(" query ") == 4 and "all_reduce" in out and "ranks 0-1:\nloss " in out
    steps = out.partition("step by step?")[2].partition("# Run")[0]
    assert re.search(r"^ *\d+ +[\d.e-]+ +[\d.e-]+ *$", steps, re.MULTILINE) and "NULL" not in steps
    assert re.search(r"^Verdict +Input-bound: \d+ % of each step waits for train_loader", out, re.MULTILINE)
    assert re.search(r"\.num_workers.*\n(.*\n)+Step +[\d.]+ -> [\d.]+ ms", out) and "probe PID why" in out
    until(lambda: not ranks_and_workers(short_folder), 2)  # a loader's worker ends by itself after five seconds
    until(lambda: not left(short_folder), 5, why=lambda: left(short_folder))


@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, *(pytest.param(each, marks=pytest.mark.long) for each in (signal.SIGTERM, signal.SIGKILL))],
)
def test_a_demo_that_is_stopped_leaves_no_process(short_folder: Path, number: signal.Signals) -> None:
    with demo(short_folder) as process:
        assert process.stdout is not None
        assert any("attached  rank 0" in line for line in process.stdout)
        process.send_signal(number)
        process.communicate(timeout=60)
    if number == signal.SIGINT:
        assert process.returncode == 130
        until(lambda: not left(short_folder), 5, why=lambda: left(short_folder))
    else:  # its files stay, no process does
        until(lambda: not [name for name in left(short_folder) if name.isdigit()], why=lambda: left(short_folder))
