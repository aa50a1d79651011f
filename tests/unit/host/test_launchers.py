"""The job of a rank, which is its launcher's: attach and endpoints agree on it, in a container too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from until import until

from probe.host.processes import environment
from probe.serve.jobs import job_of

CONTAINER = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc")
ASK = """
import json, sys
from probe.client import endpoints
from probe.host.facts import Facts
from probe.serve.jobs import job_of

rank = int(sys.argv[1])
attached = endpoints.address_of(rank, Facts(world_size=2, endpoint="ipc:///a"))
print(json.dumps([rank, job_of(rank), *(int(job.endpoint) for job in endpoints._by_job([attached]))]))
"""
LAUNCHER = """
import os, subprocess
rank = subprocess.Popen(["sleep", "60"])
subprocess.run([os.environ["PYTHON"], "-c", os.environ["ASK"], str(rank.pid)], check=True)
"""


def jobs(*first: str) -> list[int]:
    """The pid of a process that this one starts, and the job that it is of, as attach and as endpoints have it."""
    env = {**os.environ, "WORLD_SIZE": "2", "PYTHON": sys.executable, "ASK": ASK}
    return list(json.loads(subprocess.run(first, env=env, check=True, capture_output=True, timeout=60).stdout))


@pytest.fixture
def container() -> tuple[str, ...]:
    if subprocess.run([*CONTAINER, "true"], capture_output=True).returncode:
        pytest.skip("this machine does not let its users make namespaces")
    return CONTAINER


def test_a_launcher_that_is_process_1_of_a_container_stands_for_its_ranks(container: tuple[str, ...]) -> None:
    assert jobs(*container, sys.executable, "-c", LAUNCHER)[1:] == [1, 1]


def test_a_rank_that_was_left_to_an_init_stands_for_itself(container: tuple[str, ...]) -> None:
    rank, *named = jobs(*container, "sh", "-c", 'sleep 60 & "$PYTHON" -c "$ASK" $!; exit')
    assert named == [rank, rank]


@pytest.mark.parametrize("size", ["WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"])
def test_whoever_tells_a_rank_how_many_there_are_stands_for_it(size: str) -> None:
    for many, job in (("2", os.getpid()), ("1", None)):
        with subprocess.Popen(["sleep", "60"], env={size: many, "SLURM_NTASKS": "2"}) as rank:
            until(lambda: size in environment(rank.pid), 60)  # for a moment after the exec it shows none
            assert job_of(rank.pid) == (job or rank.pid)
            rank.kill()


def test_what_spawns_ranks_stands_for_them(tmp_path: Path) -> None:
    torch = tmp_path / "libtorch_cpu.so"
    torch.write_bytes(b"x")
    code = """if "from multiprocessing.spawn import spawn_main":
        import mmap, sys
        file = open(sys.argv[1], "r+b")
        mapped = mmap.mmap(file.fileno(), 0)
        print("ready", flush=True)
        sys.stdin.read()"""
    run = [sys.executable, "-c", code, str(torch)]
    with subprocess.Popen(run, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={}) as rank:
        assert rank.stdout is not None and rank.stdout.readline() == b"ready\n"
        assert job_of(rank.pid) == os.getpid()
