"""Targets in namespaces of their own, as containers have them, and on files that are not there any more.

PROBE_ROOTS=FOLDER, as `make soak` sets it, adds other systems: some 300 MB each, made there by debootstrap.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from delivering import put
from until import until

from probe.errors import AttachError
from target import TARGETS, Probe, Target, descendants

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
    assert "You can attach." in probe("doctor", pid).stdout
    assert probe("attach", pid).stdout.startswith("attached")
    assert probe(pid, "eval", "--now", "6 * 7").stdout == "42\n"
    listed = json.loads(probe("list", "--format", "json").stdout)
    assert [row["attached"] is not None for row in listed if row["pid"] == pid] == [True]
    assert f"you and the process can both write to {place}" in probe("doctor", pid).stdout
    assert len(os.listdir(f"/proc/{pid}/root/{place}")) == 1
    probe(pid, "detach")
    until(lambda: not os.listdir(f"/proc/{pid}/root/{place}"))  # the agent's last act


@needs_root
def test_a_process_in_other_namespaces_is_known_by_its_pid_here(inside: Callable[[str], int], probe: Probe) -> None:
    pid = inside("mount -t tmpfs none /var/tmp\nexport TMPDIR=/var/tmp")
    assert Path(f"/proc/{pid}/status").read_text().partition("NSpid:")[2].split("\n")[0].split()[-1] == "1"
    works(probe, pid, "/var/tmp")


@needs_root
def test_with_a_read_only_root_dev_shm_is_used(inside: Callable[[str], int], probe: Probe) -> None:
    pid = inside("mount --bind / /\nmount -o remount,bind,ro /\nmount -t tmpfs none /dev/shm")
    places = [place for place in ("/tmp", "/var/tmp", "/run") if os.access(f"/proc/{pid}/root{place}", os.W_OK)]
    if places:
        pytest.skip(f"{', '.join(places)} are mounts of their own here")
    works(probe, pid, "/dev/shm")


@pytest.fixture(scope="module", params=["trixie", "sid"])
def system(request: pytest.FixtureRequest) -> Path:
    """The root of another Debian, with the Python and the libc of that release."""
    if "PROBE_ROOTS" not in os.environ:
        pytest.skip("a part of make soak: PROBE_ROOTS names the folder for other systems")
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        pytest.skip("only root with debootstrap can make another system")
    root = Path(os.environ["PROBE_ROOTS"], request.param)
    if not root.exists():
        subprocess.run(["debootstrap", "--variant=minbase", "--include=python3", request.param, root], check=True)
    for target in ("busy.py", "waiting.py"):
        shutil.copy(TARGETS / target, root / "root")
    return root


@pytest.fixture
def in_system(system: Path, tmp_path: Path) -> Iterator[Callable[..., tuple[Target, int]]]:
    """Starts that system's Python in namespaces of its own; the target, and the Python's pid as seen here."""
    made: list[Target] = []

    def start(*words: str) -> tuple[Target, int]:
        made.append(Target((*OWN, f"--root={system}", "/usr/bin/python3", "-u", *words), tmp_path / "output", {}))
        made[-1].wait_for("ready")
        return made[-1], next(pid for pid in descendants(made[-1].pid) if "/python3" in command(pid))

    yield start
    for each in made:
        each.process.kill()
        each.end()


def test_a_container_with_another_system_and_python_works(
    in_system: Callable[..., tuple[Target, int]], probe: Probe
) -> None:
    _, pid = in_system("-c", CODE)
    works(probe, pid, "/tmp")


def test_a_container_stays_intact_under_load(in_system: Callable[..., tuple[Target, int]]) -> None:
    target, pid = in_system("/root/busy.py")
    for _ in range(50):
        assert put(pid).reply["pid"] == 1
    assert "broken" not in target.output and target.alive


def test_the_holder_of_the_gil_in_a_container_is_reported(in_system: Callable[..., tuple[Target, int]]) -> None:
    target, pid = in_system("/root/waiting.py", "gil_held_by_a_thread")
    target.wait_for("held by")
    with pytest.raises(AttachError, match=r"its thread \d+ \(.+\), asleep[^,]*, holds the GIL") as caught:
        put(pid, timeout=0.6)
    assert caught.value.code == "gil-held"


def test_an_interpreter_whose_files_are_deleted_can_be_attached_to(tmp_path: Path, probe: Probe) -> None:
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
