"""A job, and the command, in a Python that was built for glibc 2.17, as conda's and uv's are: all works as elsewhere.

Such a Python is made of this one: the first module that it imports takes away what it would lack.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from until import until

from probe.host.agent_memory import descriptors, facts
from probe.host.processes import read_stat
from target import TARGETS, Target

pytestmark = pytest.mark.slow

LACKING = """
def _lack():
    import posix
    usual = posix.posix_spawn
    def posix_spawn(*arguments, **how):
        if how.get("setsid"):
            raise NotImplementedError("posix_spawn: setsid unavailable on this platform")
        return usual(*arguments, **how)
    posix.posix_spawn = posix_spawn
    missing = ("memfd_create", "MFD_", "pidfd_open", "PIDFD_", "copy_file_range", "splice", "SPLICE_", "getrandom")
    for name in [each for each in vars(posix) if each.startswith(missing)]:
        delattr(posix, name)
_lack()
del _lack
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Its executable."""
    prefix, stdlib = tmp_path_factory.mktemp("python"), Path(sysconfig.get_path("stdlib"))
    lib = prefix / "lib" / stdlib.name
    for folder in (prefix / "bin", lib):
        folder.mkdir(parents=True)
    for path in (*stdlib.iterdir(), *stdlib.parent.glob("libpython*")):
        ((lib if path.parent == stdlib else lib.parent) / path.name).symlink_to(path)
    (lib / "encodings").unlink()
    shutil.copytree(stdlib / "encodings", lib / "encodings")
    with (lib / "encodings" / "__init__.py").open("a") as file:
        file.write(LACKING)
    return shutil.copy(os.path.realpath(sys.executable), prefix / "bin")


@pytest.fixture
def env(python: str) -> dict[str, str]:
    """With which it has the packages of this one."""
    own = sysconfig.get_path("stdlib")
    paths = [each for each in sys.path if each and each not in (own, f"{own}/lib-dynload") and not each.endswith("zip")]
    found = {"PYTHONPATH": os.pathsep.join(paths)}
    said = "import os; print([name for name in ('memfd_create', 'pidfd_open', 'MFD_CLOEXEC') if hasattr(os, name)])"
    done = subprocess.run([python, "-c", said], env={**os.environ, **found}, capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr
    return found


@pytest.fixture
def job(python: str, env: dict[str, str], tmp_path: Path) -> Iterator[Target]:
    made = Target((python, str(TARGETS / "loop.py")), tmp_path / "output", env)
    try:
        made.wait_for("ready")
        yield made
    finally:
        made.end()


@pytest.fixture
def run(python: str, env: dict[str, str]) -> Callable[..., str]:
    """The command, in that Python: its output."""

    def run(*words: str | int | Path) -> str:
        command = [python, "-m", "probe", *map(str, words)]
        done = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def beside(pid: int) -> dict[str, int]:
    """The processes of its server: name -> pid."""
    said, found = facts(pid), dict[str, int]()
    for each in filter(str.isdigit, os.listdir("/proc")):
        try:
            if said is not None and str(said.server) in Path(f"/proc/{each}/cmdline").read_text():
                found[read_stat(int(each)).name] = int(each)
        except OSError:  # it has ended
            continue
    return found


def test_every_part_works_in_it(job: Target, run: Callable[..., str], tmp_path: Path) -> None:
    def has_rows(table: str) -> bool:
        return run(job.pid, "query", "--format", "csv", f"SELECT COUNT(*) > 2 FROM {table}").endswith("true\n")

    assert run("attach", job.pid).startswith("attached  rank 0")
    assert "header" in descriptors(job.pid)
    until(lambda: has_rows("python.step_trace"))
    run(job.pid, "capture", "--steps", "1")
    assert has_rows("python.op_trace")
    run(job.pid, "record", "--detach", tmp_path / "recorded")
    assert list((tmp_path / "recorded").iterdir())
    processes = beside(job.pid)
    assert processes.keys() >= {"probe-keeper", "probe-server", "probe-answers"}
    for name in ("probe-keeper", "probe-answers"):
        assert os.getsid(processes[name]) == processes[name]
    assert run("detach", job.pid).startswith("detached  rank 0")
    assert not descriptors(job.pid) and job.alive
    until(lambda: not [pid for pid in processes.values() if os.path.exists(f"/proc/{pid}")])
