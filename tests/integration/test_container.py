"""Targets in namespaces of their own, as containers have them, and on files that are not there any more."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from target import Probe, Target, descendants

LOOP = 'exec "$PYTHON" -u -c "$CODE"'
CODE = "import time; print('ready', flush=True)\nwhile True: time.sleep(0.01)"
OWN = ("unshare", "--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "--kill-child", "--mount-proc")

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="only root may make namespaces of all kinds"
)


@pytest.fixture
def inside(tmp_path: Path) -> Iterator[Callable[[str], int]]:
    """Runs a shell script in namespaces of its own that ends in LOOP; the pid of the Python there, as seen here."""
    if subprocess.run([*OWN, "true"], capture_output=True).returncode:
        pytest.skip("this machine does not let root make namespaces")
    made: list[Target] = []

    def inside(script: str) -> int:
        env = {"PYTHON": sys.executable, "CODE": CODE}
        made.append(Target((*OWN, "sh", "-ec", f"{script}\n{LOOP}"), tmp_path / "output", env))
        made[-1].wait_for("ready")
        return next(pid for pid in descendants(made[-1].pid) if "-u -c" in command(pid))

    yield inside
    for each in made:
        each.process.kill()  # which ends all in it (--kill-child); unshare itself does not listen to SIGTERM
        each.end()


def command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def works(probe: Probe, pid: int, place: str) -> None:
    """Attach, ask, detach; place: where the two meet, in which nothing stays."""
    assert "Nothing stands in the way." in probe("doctor", pid).stdout
    assert probe("attach", pid).stdout.startswith("attached")
    assert probe(pid, "eval", "--now", "6 * 7").stdout == "42\n"
    listed = json.loads(probe("list", "--format", "json").stdout)
    assert [row["attached"] is not None for row in listed if row["pid"] == pid] == [True]
    assert f"{place} can be written to by both" in probe("doctor", pid).stdout
    assert len(os.listdir(f"/proc/{pid}/root/{place}")) == 1
    probe(pid, "detach")
    end = time.monotonic() + 5  # the agent's last act
    while os.listdir(f"/proc/{pid}/root/{place}"):
        assert time.monotonic() < end
        time.sleep(0.05)


@needs_root
def test_a_process_in_namespaces_of_its_own_is_known_by_the_pid_seen_here(
    inside: Callable[[str], int], probe: Probe
) -> None:
    pid = inside("mount -t tmpfs none /var/tmp\nexport TMPDIR=/var/tmp")
    assert Path(f"/proc/{pid}/status").read_text().partition("NSpid:")[2].split("\n")[0].split()[-1] == "1"
    works(probe, pid, "/var/tmp")


@needs_root
def test_a_read_only_root_leaves_dev_shm(inside: Callable[[str], int], probe: Probe) -> None:
    pid = inside("mount --bind / /\nmount -o remount,bind,ro /\nmount -t tmpfs none /dev/shm")
    places = [place for place in ("/tmp", "/var/tmp", "/run") if os.access(f"/proc/{pid}/root{place}", os.W_OK)]
    if places:
        pytest.skip(f"{', '.join(places)} are mounts of their own here")
    works(probe, pid, "/dev/shm")


def test_an_interpreter_whose_files_are_deleted_is_attached_to(tmp_path: Path, probe: Probe) -> None:
    """As after an upgrade of the package under a running job."""
    copies = [Path(shutil.copy(Path(sys.executable).resolve(), tmp_path / "python3"))]
    env = {"PYTHONHOME": sys.base_prefix}
    library = Path(str(sysconfig.get_config_var("LIBDIR")), str(sysconfig.get_config_var("INSTSONAME")))
    if library.suffix != ".a" and library.exists():
        copies.append(Path(shutil.copy(library, tmp_path / library.name)))
        env["LD_PRELOAD"] = str(copies[1])
    code = CODE.replace("import time", "import time, threading")
    target = Target((str(copies[0]), "-u", "-c", code), tmp_path / "output", env)
    try:
        target.wait_for("ready")
        for copy in copies:
            copy.unlink()
        maps = Path(f"/proc/{target.pid}/maps").read_text()
        assert all(f"{copy} (deleted)" in maps for copy in copies)
        assert probe("attach", target.pid).stdout.startswith("attached")
        assert probe(target.pid, "eval", "--now", "6 * 7").stdout == "42\n"
        probe(target.pid, "detach")
        assert target.alive
    finally:
        target.end()
