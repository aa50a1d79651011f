"""Which pids stand for one job."""

from __future__ import annotations

from typing import Any

import pytest

from probe.cli.choosing import _check_is_one_job
from probe.errors import EndpointError
from probe.host.processes import Process

SPAWNED = "python -c from multiprocessing.spawn import spawn_main; spawn_main(pipe_handle=7) --multiprocessing-fork"


def rank(pid: int, ppid: int, command: str = SPAWNED, **numbers: Any) -> Process:
    unknown = dict.fromkeys(("rank", "world_size", "local_rank", "local_world_size"))
    return Process(
        pid=pid, ppid=ppid, uid=0, start_ticks=1, command=command, is_python=True, has_torch=True,
        **{**unknown, **numbers},
    )  # fmt: skip


def test_ranks_without_numbers_that_one_process_has_spawned_are_one_job() -> None:
    _check_is_one_job(1, [rank(2, 1), rank(3, 1), rank(4, 1)])


def test_those_that_two_processes_have_spawned_are_two() -> None:
    with pytest.raises(EndpointError, match=r"are 2 jobs: 2 \(2 ranks\); 3 \(pid 22\)"):
        _check_is_one_job(1, [rank(20, 2), rank(21, 2), rank(22, 3)])


def test_programs_without_numbers_that_are_not_spawned_are_a_job_each() -> None:
    with pytest.raises(EndpointError, match=r"are 2 jobs: 2 \(pid 2\); 3 \(pid 3\)"):
        _check_is_one_job(1, [rank(2, 1, "python train.py"), rank(3, 1, "python train.py")])
