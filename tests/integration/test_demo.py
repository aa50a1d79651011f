"""`probe demo` shows what it promises and leaves nothing, however it ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from functools import partial
from pathlib import Path

from until import until

from target import PROBE


def demo(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(PROBE), "demo"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip


def left(folder: Path) -> list[str]:
    """What the demo left: files, and processes that have its TMPDIR."""
    mark = f"TMPDIR={folder}".encode()
    found = [path.name for path in folder.iterdir()]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found += [process.name] if mark in (process / "environ").read_bytes() else []
        except OSError:  # ended, or not ours
            continue
    return found


def no_process(folder: Path) -> bool:
    return not [name for name in left(folder) if name.isdigit()]


def test_the_demo_shows_attach_three_queries_and_an_eval(short_folder: Path) -> None:
    with demo(short_folder) as process:
        out, err = process.communicate(timeout=100)
    assert process.returncode == 0, err
    assert out.count("attached  rank") == 2
    assert out.count(" query ") == 4 and "all_reduce" in out and "ranks 0-1:\nloss " in out
    steps = out.partition("step by step?")[2].partition("# Run")[0]
    assert re.search(r"^ *\d+ +[\d.e-]+ +[\d.e-]+ *$", steps, re.MULTILINE) and "NULL" not in steps
    assert "probe attach PID" in out
    until(lambda: not left(short_folder), 5, why=lambda: left(short_folder))


def test_a_demo_that_is_stopped_leaves_no_process(short_folder: Path) -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
    folders = {number: short_folder / str(int(number)) for number in numbers}
    for folder in folders.values():
        folder.mkdir()
    demos = {number: demo(folders[number]) for number in numbers}  # at once: most of their time they start
    for number, process in demos.items():
        with process:
            assert process.stdout is not None
            assert any("attached  rank 0" in line for line in process.stdout)
            process.send_signal(number)
            process.communicate(timeout=60)
    assert demos[signal.SIGINT].returncode == 130
    until(lambda: not left(folders[signal.SIGINT]), 5, why=lambda: left(folders[signal.SIGINT]))
    for number in (signal.SIGTERM, signal.SIGKILL):  # its files stay, no process does
        until(partial(no_process, folders[number]))
