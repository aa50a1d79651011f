"""Which processes are Python, and which of them are ranks."""

from __future__ import annotations

import os
import subprocess
import time

import pytest

from probe.host.processes import Process, choose_ranks, descendants, process, python_processes, start_ticks

pytestmark = pytest.mark.alone  # it looks at the clock

SPAWN = "python -c from multiprocessing.spawn import spawn_main; spawn_main(pipe_handle=7) --multiprocessing-fork"


def entry(pid: int, ppid: int, rank: int | None = None, **more) -> Process:
    elastic = ("0", "run") if more.pop("launched", rank is not None) else ("", "")
    facts = {
        "command": "python train.py",
        "is_python": True,
        "has_torch": True,
        "local_rank": rank,
        "local_world_size": 2,
        **more,
    }
    return Process(
        pid=pid, ppid=ppid, uid=0, start_ticks=1, rank=rank, world_size=2, launched_by=elastic, **facts
    )  # fmt: skip


def pids(*tree: Process) -> list[int]:
    return [each.pid for each in choose_ranks(list(tree))]


def test_this_process_is_recognized_as_python():
    me = process(os.getpid())
    assert me is not None and me.is_python and me.ppid == os.getppid() and me.uid == os.geteuid()
    assert me.command and me.start_ticks == start_ticks(os.getpid())
    assert os.getpid() in [each.pid for each in python_processes()]


def test_a_shell_is_not_python_and_a_missing_process_is_none():
    with subprocess.Popen(["sleep", "100"]) as child:
        found = process(child.pid)
        assert found is not None and not found.is_python and not found.has_torch
        assert descendants(os.getpid()).count(child.pid) == 1
        child.kill()
    assert process(child.pid) is None
    assert start_ticks(child.pid) is None


def test_listing_does_not_take_seconds():
    began = time.perf_counter()
    python_processes()
    assert time.perf_counter() - began < 5  # hundreds of processes take milliseconds each at most


def test_the_pid_of_torchrun_means_its_ranks():
    torchrun = entry(1, 0)
    workers = [entry(10, 2, 0), entry(11, 3, 1)]  # forked loader workers inherit the environment
    assert pids(torchrun, entry(3, 1, 1), entry(2, 1, 0), *workers) == [2, 3]


def test_a_launcher_with_a_rank_variable_is_not_a_rank():
    assert pids(entry(1, 0, 0, launched=False, local_rank=None), entry(2, 1, 0), entry(3, 1, 1)) == [2, 3]


def test_the_pid_of_a_rank_means_that_rank_only():
    tracker = entry(3, 2, 0, command="python -c from multiprocessing.resource_tracker import main", has_torch=False)
    compiler = entry(4, 2, 0, command="python -m torch._inductor.compile_worker")
    assert pids(entry(2, 1, 0), tracker, compiler) == [2]


def test_helpers_of_a_job_that_has_set_its_rank_itself_are_no_ranks():
    """It had none when it began, and they inherit the one that it has now."""
    tracker = entry(3, 2, 0, command="python -c from multiprocessing.resource_tracker import main", has_torch=False)
    compiler = entry(4, 2, 0, command="python /lib/torch/_inductor/compile_worker/__main__.py --kind=fork")
    older = entry(5, 2, 0, command="python -m torch._inductor.compile_worker")
    assert pids(entry(2, 1), tracker, compiler, older) == [2]


def test_spawned_processes_with_torch_are_ranks_if_no_process_has_a_rank():
    tracker = entry(4, 1, command="python -c from multiprocessing.resource_tracker import main", has_torch=False)
    inner = entry(5, 2, command=SPAWN)  # its own loader worker
    assert pids(entry(1, 0), entry(2, 1, command=SPAWN), entry(3, 1, command=SPAWN), tracker, inner) == [2, 3]


def test_spawned_loader_workers_are_not_ranks():
    assert pids(entry(1, 0), entry(2, 1, command=SPAWN, name="pt_data_worker")) == [1]


def test_the_pid_of_a_shell_means_the_process_in_it():
    assert pids(entry(1, 0, is_python=False, has_torch=False), entry(2, 1), entry(3, 2)) == [2]


def test_without_python_there_are_no_ranks():
    assert pids(entry(1, 0, is_python=False)) == []


def test_a_program_that_a_launcher_has_started_without_a_rank_is_the_rank():
    """accelerate does so on one device; deepspeed starts a second launcher before its ranks."""
    accelerate = entry(1, 0, command="python /opt/bin/accelerate launch train.py")
    assert pids(accelerate) == [1]
    assert pids(accelerate, entry(2, 1), entry(3, 2)) == [2]  # 3: its loader worker
    deepspeed = entry(1, 0, command="python /opt/bin/deepspeed train.py")
    assert pids(deepspeed, entry(2, 1, command="python -u -m deepspeed.launcher.launch train.py")) == [1]


def test_a_program_below_a_python_without_torch_is_the_rank():
    conda = entry(1, 0, command="python /opt/bin/conda run -n env python train.py", has_torch=False)
    shell = entry(2, 1, is_python=False, has_torch=False, command="bash /tmp/conda")
    assert pids(conda, shell, entry(3, 2, has_torch=False)) == [1]  # which is it?
    assert pids(conda, shell, entry(3, 2)) == [3]


def test_several_programs_below_a_python_without_torch_are_several_jobs():
    assert pids(entry(1, 0, has_torch=False), entry(2, 1), entry(3, 1), entry(4, 3)) == [2, 3]
