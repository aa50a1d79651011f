"""Recorders and jobs that are killed at random moments: is each row in the files once, and none missing?

python tests/bench/recording.py [--rounds 500] [--seed 1]        some 8 s a round

A round is a recorder that flushes every second and is killed, after 0 to 8 s, in one of four rounds together with its
job.  After each, no file may be unreadable, no row of any table twice, no step between two others missing, and the last
recorded step no older than a flush and the time until rows are final, if the job was killed, too.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import subprocess

from recorder import begun

import probe
from probe.tables import TABLES
from probe.tables.declaration import Table
from target import PROBE, TARGETS, Target

LATEST_S = 1.0 + 2.0 + 1.0  # a flush, until rows are final, and what a flush takes on a busy machine
WRITE_S = (1.0, 4.0, 60.0)  # between two writings of tables; flushes in between mirror rows
TWICE = "SELECT COUNT(*) AS n FROM (SELECT {columns}, COUNT(*) FROM {table} GROUP BY ALL HAVING COUNT(*) > 1)"
STEPS = "SELECT COUNT(*) AS n, MIN(step) AS first, MAX(step) AS last, epoch(MAX(time)) AS ended FROM python.step_trace"


def faults(folder: Path, ended_s: float | None) -> list[str]:
    """What is wrong with the recordings.  ended_s: when the last job was killed with its recorder."""
    found = []
    for job in sorted(folder.glob("job=*")):
        with probe.connect(str(job)) as recording:
            for table in TABLES:
                if table.final == "never" or table.derive_catalogue is not None:
                    continue
                result = recording.query(TWICE.format(table=table.name, columns=compared(table)))
                found += [note.text for note in result.notes]
                found += [f"{table.name}: {row['n']} rows twice" for row in result if row["n"]]
            (steps,) = recording.query(STEPS)
    if steps["n"] and steps["n"] != steps["last"] - steps["first"] + 1:
        found.append(f"{steps['n']} steps of {steps['first']} to {steps['last']}")
    if ended_s is not None and steps["n"] and ended_s - steps["ended"] > LATEST_S:
        found.append(f"the last step began {ended_s - steps['ended']:.1f} s before the kill")
    return found


def compared(table: Table) -> str:
    """All columns; but the wall clock's time of the same row differs by the readings that it is made with."""
    is_clocked = {"time", "start_ns"} <= {column.name for column in table.columns}
    return "* EXCLUDE (time)" if is_clocked else "*"


def started(folder: Path) -> Target:
    job = Target((sys.executable, str(TARGETS / "loop.py"), "--sleep", "0.005"), folder / "job.txt", {})
    job.wait_for("ready")
    subprocess.run([str(PROBE), "attach", str(job.pid)], check=True, capture_output=True)
    return job


def rounds(count: int, chance: random.Random, folder: Path) -> Counter[str]:
    told, number, job = Counter[str](), 0, started(folder)
    place = folder / "0"
    try:
        for done in range(count):
            recorder, ended_s = begun(job.pid, place, chance.choice(WRITE_S)), None
            lives_s = chance.uniform(0, 8)
            time.sleep(lives_s)
            is_last = chance.random() < 0.25
            if is_last:
                os.kill(job.pid, signal.SIGKILL)
                ended_s = time.time()
            recorder.send_signal(signal.SIGKILL)
            recorder.communicate()
            for fault in faults(place, ended_s if lives_s > LATEST_S else None):
                told[fault] += 1
                print(f"round {done}: {fault}", flush=True)
            if is_last:
                job.end()
                number += 1
                place, job = folder / str(number), started(folder)
    finally:
        job.end()
    print(f"{count} rounds, {number} with the job, {sum(told.values())} faults")
    return told


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        sys.exit(bool(rounds(asked.rounds, random.Random(asked.seed), Path(name))))
