"""A job that its own user may not trace, for it has capabilities: its agent hands its memory over for stacks."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest
from delivering import in_child_of_user
from until import until

import probe as library
from probe.host import agent_memory
from probe.profile.memory import VmMemory
from probe.profile.profiler import Profiler
from target import Probe, Start, Target, links

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")

OWNER = 61001
JOB = f"""
import ctypes, os, threading, time
libc = ctypes.CDLL(None)
libc.prctl(8, 1)  # PR_SET_KEEPCAPS
os.setgroups([])
os.setgid({OWNER})
os.setuid({OWNER})
reads_all = [4, 4, 0, 0, 0, 0]  # CAP_DAC_READ_SEARCH, with which it can read its Python: effective, permitted
assert libc.capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)(*reads_all)) == 0
libc.prctl(4, 1)  # PR_SET_DUMPABLE
def sleeps():
    while True:
        time.sleep(0.1)
threading.Thread(target=sleeps, name="sleeper", daemon=True).start()
print("ready", flush=True)
sleeps()
"""


@pytest.fixture(scope="module")
def job(start_once: Start, probe: Probe, tmp_path_factory: pytest.TempPathFactory) -> Target:
    script = tmp_path_factory.mktemp("job") / "job.py"
    script.write_text(JOB)
    made = start_once(script, env={"TMPDIR": "/tmp"})
    probe("attach", made.pid)
    until(lambda: layout_of(made.pid))  # it is searched for right after the attach
    return made


def layout_of(pid: int) -> Any:
    return getattr(agent_memory.facts(pid), "layout", None)


@pytest.fixture
def url(job: Target) -> str:
    """Of the agent's socket; the job's user may not look into /proc for it."""
    return str(getattr(agent_memory.facts(job.pid), "endpoint", None))


def may_trace(pid: int, address: int) -> bool:
    try:
        return len(VmMemory(pid).read(address, 8)) == 8
    except PermissionError:
        return False


def test_its_user_gets_stacks_without_permission_to_trace(job: Target, url: str) -> None:
    address = layout_of(job.pid)["interp"]
    assert may_trace(job.pid, address) and not in_child_of_user(OWNER, lambda: may_trace(job.pid, address))

    def stacks() -> list[tuple[str | None, bool, str]]:
        with library.connect(url) as connection:
            return [(each.name, each.is_main, each.frames[0].function) for each in connection.stacks()[0]]

    stacks()  # imports what its user may not be able to read
    assert in_child_of_user(OWNER, stacks) == [["MainThread", True, "sleeps"], ["sleeper", False, "sleeps"]]
    assert not [link for link in links(job.pid) if link.endswith("/mem")]  # nothing of it stays in the job


def test_its_user_can_profile_it(job: Target, url: str, probe: Probe) -> None:
    order = {"seconds": 1.0, "steps": 0, "rate": 50.0, "by": "test", "pid": 0, "url": url, "patience_s": 1.0}

    def profile() -> dict[str, Any]:
        read, _ = os.pipe()
        sys.stdin = os.fdopen(read)
        return Profiler(order).run()

    told = in_child_of_user(OWNER, profile)
    assert told["samples"] > 40 and told["not_read"] < 10
    count = "SELECT COUNT(*) AS n FROM python.profile WHERE function = 'sleeps'"
    assert int(probe(job.pid, "query", "--format", "csv", count).stdout.split()[1]) > 40
