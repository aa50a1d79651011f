"""What NCCL's RAS is asked, and when it is not; on a played one, in a process of its own."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from held_port import held_port

from probe.diagnose.second_witness import said_of
from probe.host.nccl_ras import communicators
from target import Start

CALLS = {"AllReduce": 121, "Broadcast": 3}


def rank(number: int, calls: dict[str, int] | None = None, error: int = 0, aborted: bool = False) -> dict[str, Any]:
    status = {"init_state": 0, "async_error": error, "finalize_called": False, "destroy_flag": False}
    place = {"rank": number, "host": "10.0.0.1", "pid": 4250 + number, "cuda_dev": number, "nvml_dev": number}
    return {**place, "status": {**status, "abort_flag": aborted}, "collective_counts": calls or CALLS}


def missing(number: int, dead: bool = False, mute: bool = False) -> dict[str, Any]:
    place = {"rank": number, "host": "10.0.0.2", "pid": 4250 + number, "cuda_dev": number, "nvml_dev": number}
    return {**place, "status": {"unresponsive": mute, "considered_dead": dead}}


def status(ranks: list[dict[str, Any]], absent: tuple[dict[str, Any], ...] = ()) -> str:
    counts = {"size": len(ranks) + len(absent), "ranks_count": len(ranks), "missing_ranks_count": len(absent)}
    one = {"hash": "0x1", "secondary_hash": "0x2:0x3", **counts, "ranks": ranks, "missing_ranks": list(absent)}
    ras = {"collection_time_sec": 0.001, "timeouts_count": 0}
    return json.dumps({"nccl_version": "2.28.9", "communicators_count": 1, "communicators": [one], "ras": ras})


def said(start: Start, folder: Path, answer: str, *words: str, host: str = "127.0.0.1") -> list[str] | None:
    (folder / "answer").write_text(answer)
    with held_port() as free:
        job = start("ras.py", str(folder / "answer"), *words, env={"NCCL_RAS_ADDR": f"{host}:{free}"})
    found = communicators([os.getpid(), job.pid])
    return [line for each in found for line in said_of(each)] if found else None


BEGIN = "NCCL says of a communicator of"


@pytest.mark.parametrize(
    ("answer", "lines"),
    [
        (status([rank(0), rank(1)]), []),
        (
            status([rank(0), rank(1), rank(2, {"AllReduce": 120, "Broadcast": 3})]),
            [f"{BEGIN} 3 ranks: AllReduce was called 120 times by rank 2, 121 times by ranks 0-1"],
        ),
        (
            status([rank(0)], (missing(1, dead=True), missing(2, mute=True), missing(3))),
            [
                f"{BEGIN} 4 ranks: rank 1 (pid 4251 on 10.0.0.2) is considered dead",
                f"{BEGIN} 4 ranks: rank 2 (pid 4252 on 10.0.0.2) does not answer",
                f"{BEGIN} 4 ranks: rank 3 (pid 4253 on 10.0.0.2) has left it",
            ],
        ),
        (
            status([rank(0, error=6, aborted=True), rank(1, error=7)]),
            [
                f"{BEGIN} 2 ranks: rank 0 (pid 4250 on 10.0.0.1) has error 6",
                f"{BEGIN} 2 ranks: rank 0 (pid 4250 on 10.0.0.1) was aborted",
            ],
        ),
    ],
    ids=["nothing", "late", "missing", "failed"],
)
def test_what_is_wrong_is_said(start: Start, tmp_path: Path, answer: str, lines: list[str]) -> None:
    assert said(start, tmp_path, answer) == lines


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.2"])
def test_the_address_is_the_one_that_the_process_listens_at(start: Start, tmp_path: Path, host: str) -> None:
    assert said(start, tmp_path, status([rank(0)]), host=host) == []


@pytest.mark.parametrize("answer", ["", "no JSON", "[]", '{"communicators": [{"size": "x"}]}', '{"communicators": 5}'])
def test_an_answer_that_is_none_is_nothing(start: Start, tmp_path: Path, answer: str) -> None:
    assert said(start, tmp_path, answer) is None


def test_an_nccl_without_json_is_not_asked_further(start: Start, tmp_path: Path) -> None:
    assert said(start, tmp_path, status([rank(0), rank(2, {"AllReduce": 1})]), "text") is None


def test_a_socket_of_another_process_is_left_alone(start: Start, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as ours:
        ours.settimeout(0.3)
        (tmp_path / "answer").touch()
        job = start("waiting.py", "sleep", env={"NCCL_RAS_ADDR": f"127.0.0.1:{ours.getsockname()[1]}"})
        assert communicators([job.pid]) == []
        with pytest.raises(TimeoutError):
            ours.accept()


def test_one_that_never_answers_is_left_after_a_while(start: Start, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with held_port() as free:
        job = start("ras.py", str(tmp_path / "pipe"), env={"NCCL_RAS_ADDR": f"127.0.0.1:{free}"})
    assert communicators([job.pid], patience_s=0.5) == []
