"""Why a job over NCCL hangs: each cause is planted on the played runtime, in a job that was attached to before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from held_port import held_port
from played import Play
from until import until

from target import Probe

VERDICTS = {
    "late": ("waiting", [1], "Waiting for rank 1, which is blocked in late"),
    "kernel": ("device", [1], "The device of rank 1 has not come to all_reduce"),
    "mismatch": ("mismatch", [0, 1], "Ranks disagree about collective"),
    "dead": ("gone", [1], "Rank 1 is gone."),
    "watchdog": ("gone", [0], "Rank 0 is gone."),
    "capture": ("waiting", [1], "Waiting for rank 1, which is blocked in capture"),
}
SOON = {"TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "500"}  # a quarter of how long torch waits before it ends a rank


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", VERDICTS)
def test_the_cause_is_told(play: Play, probe: Probe, tmp_path: Path, kind: str) -> None:
    code, ranks, sentence = VERDICTS[kind]
    report = told(play, probe, tmp_path / "hang", kind, code)
    assert report["ranks"] == ranks and report["verdict"].startswith(sentence), report


def test_what_nccl_says_itself_is_added(play: Play, probe: Probe, tmp_path: Path) -> None:
    status = {"async_error": 0, "abort_flag": False}
    ranks = [
        {"rank": rank, "host": "10.0.0.1", "pid": rank, "status": status, "collective_counts": {"AllReduce": 9 - rank}}
        for rank in range(2)
    ]
    answer = {"communicators": [{"size": 2, "ranks": ranks, "missing_ranks": []}]}
    (tmp_path / "hang.ras").write_text(json.dumps(answer))
    with held_port() as free:
        report = told(play, probe, tmp_path / "hang", "late", "waiting", NCCL_RAS_ADDR=f"127.0.0.1:{free}")
    said = "NCCL says of a communicator of 2 ranks: AllReduce was called 8 times by rank 1, 9 times by rank 0"
    assert report["why"][-1] == said


def told(play: Play, probe: Probe, file: Path, kind: str, code: str, **settings: str) -> Any:
    """What is said of a job that hangs, once it is this verdict."""
    job = play("hanging.py", kind, str(file), ranks=2, PLAYED_KERNEL_NS="0", **SOON, **settings)
    probe("attach", job.target.pid)
    recorded = "SELECT COUNT(*) AS n FROM python.nccl_trace"
    until(lambda: json.loads(probe(job.target.pid, "query", "--format", "json", recorded).stdout)[0]["n"] > 20, 60)
    file.touch()
    job.target.wait_for("hangs", times=2)

    reports: list[Any] = []

    def is_told() -> bool:
        reports.append(json.loads(probe(job.target.pid, "hang", "--json", status=None).stdout))
        return bool(reports[-1]["code"] == code)

    until(is_told, 40, why=lambda: reports[-1])
    assert [each for each in job.broken() if each.rule != "context" or each.is_ours] == []
    return reports[-1]
