"""The duration of a collective is what was played, wherever the device did not wait for the host to issue it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from played import Play, Played
from until import until

from target import Probe

ROWS = """SELECT pid, group_seq, duration_ms * 1e6 AS ns FROM python.nccl_trace
WHERE state = 'done' AND NOT from_flight_recorder"""
BUSY = {"PLAYED_KERNEL_NS": "300000", "PLAYED_TIMES": "1"}  # kernels take longer than the host does to issue them
AHEAD_NS = 20_000  # the host had issued it so long before its stream came to it
LEAST = 200  # operations


def played(job: Played) -> dict[int, dict[int, int]]:
    """By process, by number: the nanoseconds of each operation that its stream came to after it was issued."""
    times: dict[int, dict[int, int]] = {}
    for file in job.folder.glob("times.*"):
        for line in file.read_text().splitlines():
            number, issued, start, end = map(int, line.split()[1:])
            if start - issued >= AHEAD_NS:
                times.setdefault(int(file.suffix[1:]), {})[number] = end - start
    return times


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["ddp", "fsdp2", "tensor_parallel", "forks"])
def test_a_duration_is_within_five_percent_of_what_was_played(
    play: Play, probe: Probe, tmp_path: Path, kind: str
) -> None:
    over = tmp_path / "over"
    words = (kind, "40", "--until", str(over), "--sleep", "0.02")
    job = play("training.py", *words, ranks=2, **BUSY)
    probe("attach", job.target.pid)

    def ratios() -> list[float]:
        """Ours to the played ones.  Torch counts some operations that NCCL does not: how many is what fits best."""
        rows = json.loads(probe(job.target.pid, "query", "--open", "--format", "json", ROWS).stdout)
        times = played(job)
        found = [
            [row["ns"] / of for row in rows if (of := times[row["pid"]].get(row["group_seq"] - more))]
            for more in range(12)
        ]
        return max(found, key=lambda each: sum(map(is_close, each)))

    until(lambda: len(ratios()) >= LEAST, 60, 1.0)
    seen = ratios()
    over.touch()
    assert sum(map(is_close, seen)) >= 0.95 * len(seen), sorted(seen)


def is_close(ratio: float) -> bool:
    return abs(ratio - 1) <= 0.05
