"""A day of recording in half an hour: does memory stay flat, and do files stay few?

python tests/bench/recorded_day.py [--hours 24] [--ranks 8] [--folder DIR]

Ranks that never ran make ten steps a second, each with a batch, a forward pass, a collective and an optimizer step;
what a recorder does once a minute is done for each minute of theirs.  A line for each hour; at the end every step must
be in the files once.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from history import BEGAN, CPU_NS, MS, PROCESS, SAMPLES, THREADS, rank_at, step_rows
from listed_source import ListedSource

import probe
from probe.record.archive import Archive
from probe.record.flush import Flushes
from probe.record.sources import Windowed
from probe.record.stored import Names
from probe.snapshot.snapshot import Snapshot

STEP, MINUTE, BEFORE = 100 * MS, 60_000 * MS, 300  # BEFORE: steps that rings still hold when a minute begins
COUNT = "SELECT COUNT(*) AS n, COUNT(DISTINCT step) AS steps, MIN(step) AS first, MAX(step) AS last FROM step_trace"
MOST_FILES = 2000


def source(ranks: int, now: int) -> ListedSource:
    """What the rings of all ranks hold at this moment."""
    until = (now - BEGAN) // STEP
    first = max(0, until - MINUTE // STEP - BEFORE)
    return ListedSource({rank_at(rank, now, ranks): _rows(rank, first, until, now) for rank in range(ranks)})


def _rows(rank: int, first: int, until: int, now: int) -> dict[str, list[list[int]]]:
    rows: dict[str, list[list[int]]] = defaultdict(list)
    numbers: dict[str, int] = {}
    for count in range(first, until):
        made = step_rows(rank, count, BEGAN + count * STEP, STEP, 200, now)
        for stream, (_, row) in made:
            number = numbers.setdefault(stream, 1 + first * sum(each == stream for each, _ in made))
            rows[stream].append([*row, number])
            numbers[stream] += 1
    per_second = 1000 * MS // STEP
    for second in range(first // per_second, until // per_second):
        at = BEGAN + second * 1000 * MS
        rows[SAMPLES] += [[at, PROCESS, CPU_NS, at // 3, 2 * second + 1], [at, PROCESS, THREADS, 9, 2 * second + 2]]
    return rows


def recorded(hours: int, ranks: int, root: Path) -> bool:
    """Whether all is as it should be."""
    folder, names, lost = root / "job=day", Names(), list[object]()
    recorder, most_files, began = Flushes(folder, names, lambda *what: lost.append(what)), 0, time.monotonic()
    for minute in range(1, 60 * hours + 1):
        now = BEGAN + minute * MINUTE
        job = Snapshot([Windowed(source(ranks, now), recorder.begin)])
        is_last = minute == 60 * hours
        ended = [f"agent-{rank}" for rank in range(ranks)] if is_last else []
        recorder.flush(job, ended, stops=is_last)
        if minute % 5 == 0:
            recorder.moments(job)
        recorder.merge()
        if minute % 60 == 0:
            files = [path for path in folder.rglob("*") if path.is_file()]
            most_files, size = max(most_files, len(files)), sum(path.stat().st_size for path in files)
            of_step = size / ranks / ((now - BEGAN) / STEP)
            rss_mb = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
            took = time.monotonic() - began
            print(f"hour {minute // 60:>2}: {rss_mb:.0f} MB of memory, {len(files)} files of {size >> 20} MB, "
                  f"{of_step:.0f} bytes a rank and step, {took:.0f} s", flush=True)  # fmt: skip
    with probe.connect(str(root)) as recording:
        (found,) = recording.query(COUNT)
    steps = hours * 3600 * 1000 * MS // STEP
    print(f"{found['n']} rows of {found['steps']} steps, {len(lost)} losses, at most {most_files} files")
    is_whole = found["n"] == ranks * found["steps"] and steps - 1 <= found["steps"] <= steps
    return is_whole and not lost and not Archive(root).files("python.step_trace")[1] and most_files <= MOST_FILES


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=int, default=24)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--folder", help="a temporary one by default")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.folder) as name:
        sys.exit(not recorded(asked.hours, asked.ranks, Path(name)))
