"""The job of a rank, which is its launcher's: attach and endpoints agree on it, in a container too."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

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
