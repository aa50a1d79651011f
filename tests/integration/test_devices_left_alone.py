"""What stays off where devices are left alone (--no-devices, or a backend that was not tested), and who is told so.

In ranks over gloo on a played CUDA: tests/targets/devices_left_alone.py by itself, on_cuda.py with an agent.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
from two_ranks import run_ranks

from probe.host import agent_memory
from probe.streams import DEVICE
from target import Probe, Start, Target

pytest.importorskip("torch")

CUDA = "CUDA is in use, which --no-devices leaves alone"
ANOTHER = "a process group uses fake, which was not tested yet"
TAPS = "SELECT DISTINCT device_tap, collectives_tap FROM probe.agents"
ALONE = "import torch.distributed as dist\ndist.all_reduce(torch.ones(3))"
Ranks = list[dict[str, Any]]


@pytest.fixture(scope="module")
def ranks(start_once: Start, tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    return run_ranks(start_once, "devices_left_alone.py", tmp_path_factory.mktemp("left_alone"))


def is_off(told: dict[str, Any], why: str) -> bool:
    return (told["why_off"], told["recording"], told["held"]) == (why, False, 0)


def are_refused(told: list[str | None]) -> bool:
    one, now, both = told
    return "run it on all ranks" in (one or "") and "without --now" in (now or "") and both is None


def test_where_cuda_is_left_alone_collectives_are_neither_recorded_nor_held(ranks: Ranks) -> None:
    for rank in ranks:
        told = rank["in_use"]
        assert is_off(told, CUDA) and told["since_ns"] is None
        assert (told["rows"], told["alive"], told["same_wait"]) == (0, 0, True)


def test_a_one_sided_collective_of_an_eval_is_refused_without_the_tap_too(ranks: Ranks) -> None:
    for rank in ranks:
        assert are_refused(rank["in_use"]["refused"]) and are_refused(rank["another_backend"]["refused"])


def test_else_everything_is_on(ranks: Ranks) -> None:
    for rank in ranks:
        told = rank["as_usual"]
        assert (told["why_off"], told["recording"], told["rows"]) == ("", True, 100) and told["dumps"]


def test_no_flight_recorder_is_dumped(ranks: Ranks) -> None:
    for rank in ranks:
        told = rank["recorder_dumps"]
        assert (told["texts"], told["why_not"], told["on_cuda"]) == ([], CUDA, [])
        assert told["calls"]  # once CUDA is not in use
        assert told["groups"] == {"0": [0, 1]}


def test_cuda_that_starts_later_releases_what_is_held_and_closes_rows_in_flight(ranks: Ranks) -> None:
    first = ranks[0]["comes_later"]
    assert first["before"]["recording"] and (first["before"]["rows"], first["before"]["held"]) == (51, 50)
    for rank in ranks:
        told = rank["comes_later"]
        assert told["at_once"]["why_off"] == CUDA and is_off(told["after"], CUDA)
        assert (told["rows"], told["in_flight"], told["at_the_end"], told["status"]) == (1, 0, 0, 0)
    assert [rank["comes_later"]["sums"] for rank in ranks] == [[8.0, 4.0 * sum(range(50))], [8.0, 0.0]]


def test_the_first_operation_of_another_backend_is_not_recorded(ranks: Ranks) -> None:
    for rank in ranks:
        told = rank["another_backend"]
        assert told["before"]["recording"] and told["before"]["rows"] == told["at_once"]["rows"] == 1
        assert is_off(told["at_once"], ANOTHER) and is_off(told["after"], ANOTHER)
        assert (told["alive"], told["why_no_dumps"]) == (0, ANOTHER)


def test_a_group_of_another_backend_turns_the_tap_off(ranks: Ranks) -> None:
    for rank in ranks:
        told = rank["another_backend_that_is_silent"]
        assert is_off(told["after"], ANOTHER)
        assert told["without"]["recording"] and told["without"]["rows"] == 1


def rows(probe: Probe, job: Target, sql: str) -> list[dict[str, Any]]:
    return list(json.loads(probe(job.pid, "query", "--format", "json", sql).stdout))


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.2)


def test_attach_reports_what_is_off_in_a_cuda_process_and_host_times_remain(start: Start, probe: Probe) -> None:
    job = start("on_cuda.py")
    assert probe("attach", "--no-devices", job.pid).stderr == f"rank 0: device times and memory are off: {CUDA}\n"
    assert "already" in probe("attach", "--no-devices", job.pid).stdout
    until(
        lambda: rows(probe, job, TAPS) == [{"device_tap": f"off: {CUDA}", "collectives_tap": "off: no process group"}]
    )
    assert DEVICE not in agent_memory.descriptors(job.pid)
    sql = "SELECT COUNT(host_duration) > 50 AS enough, COUNT(duration) AS known, COUNT(allocated) AS mb"
    sql = f"{sql} FROM python.torch_trace"
    until(lambda: rows(probe, job, sql)[0]["enough"])
    done = probe(job.pid, "query", "--format", "csv", sql)
    assert f"rank 0: device is off: {CUDA}" in done.stderr and done.stdout.splitlines()[-1] == "true,0,0"


def test_an_agent_that_records_on_devices_goes_on_and_the_user_is_told(start: Start, probe: Probe) -> None:
    job = start("on_cuda.py")
    assert probe("attach", job.pid).stderr == ""
    refused = probe("attach", "--no-devices", job.pid, status=None)
    assert refused.returncode not in (0, 1) and f"[has-devices] Process {job.pid} has an agent" in refused.stderr
    until(lambda: rows(probe, job, "SELECT DISTINCT device_tap FROM probe.agents") == [{"device_tap": "on"}])
    assert f"probe {job.pid} detach" in refused.stderr


def test_cuda_that_starts_after_the_attach_is_left_alone_too(start: Start, probe: Probe) -> None:
    job = start("on_cuda.py", "later", ranks=2)
    told = probe("attach", "--no-devices", job.pid).stderr
    assert told == "ranks 0-1: device times and memory are off: devices, which --no-devices leaves alone\n"
    assert probe("attach", job.pid).stderr == told  # the agents that are there stay
    until(lambda: rows(probe, job, "SELECT DISTINCT state FROM python.nccl_trace") == [{"state": "done"}])
    for pid in re.findall(r"ready (\d+)", job.output):
        os.kill(int(pid), signal.SIGUSR1)
    off = {"device_tap": "off: devices, which --no-devices leaves alone", "collectives_tap": f"off: {CUDA}"}
    until(lambda: rows(probe, job, TAPS) == [off])
    assert rows(probe, job, "SELECT DISTINCT state FROM python.nccl_trace WHERE state <> 'done'") == []
    done = probe(job.pid, "detach")
    assert done.stdout.count("detached") == 2 and done.stderr == ""


@pytest.fixture(scope="module")
def job(start_once: Start, probe: Probe) -> Target:
    job = start_once("on_cuda.py", ranks=2)
    told = probe("attach", "--no-devices", job.pid).stderr
    assert told == f"ranks 0-1: device times and memory, collectives and the Flight Recorder are off: {CUDA}\n"
    until(lambda: rows(probe, job, TAPS) == [{"device_tap": f"off: {CUDA}", "collectives_tap": f"off: {CUDA}"}])
    return job


def test_a_query_says_why_there_are_no_collectives(job: Target, probe: Probe) -> None:
    assert rows(probe, job, TAPS) == [{"device_tap": f"off: {CUDA}", "collectives_tap": f"off: {CUDA}"}]
    done = probe(job.pid, "query", "--format", "csv", "SELECT COUNT(*) AS n FROM python.nccl_trace")
    assert done.stdout.split() == ["n", "0"] and f"rank 0-1: collectives is off: {CUDA}" in done.stderr


def test_hang_reports_what_it_cannot_know(job: Target, probe: Probe) -> None:
    report = json.loads(probe(job.pid, "hang", "--json").stdout)
    assert report["code"] == "not-hung"
    assert f"the collectives of ranks 0-1 are not known: {CUDA}" in report["why"]


def test_an_eval_on_one_rank_cannot_hang_the_job(job: Target, probe: Probe) -> None:
    assert "rank 1" in probe(job.pid, "eval", "--rank", "0", ALONE, status=1).stderr
    first = next(pid for pid, rank in re.findall(r"ready (\d+) rank=(\d)", job.output) if rank == "0")
    assert "rank 1" in probe(first, "eval", ALONE, status=1).stderr
    assert probe(job.pid, "eval", "x = torch.ones(3); dist.all_reduce(x); print(x.tolist())").stdout.endswith(
        "[2.0, 2.0, 2.0]\n"
    )
