"""Root, the user of a job and another user: what each can see, read, stop and delete, as SECURITY.md says it.

Only root may become others, so all of this is skipped for anybody else.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from delivering import in_child_of_user
from forked import ForkServer
from until import until

from probe.host import agent_memory
from probe.host.facts import Facts
from target import FAST_IMPORT, Probe, Start, Target

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")

AsUser = Callable[..., list[tuple[int, str]]]
OWNER, OTHER = 61001, 61002
JOB = f"""
{FAST_IMPORT}, ctypes, os, time
os.setgroups([])
os.setgid({OWNER})
os.setuid({OWNER})
ctypes.CDLL(None).prctl(4, 1)  # PR_SET_DUMPABLE, as for a job that its user has started
print("ready", flush=True)
while True:
    time.sleep(0.1)
"""
# A script that is forked with all that a command needs: a user may not be able to read this Python.
AS_USER = """
import contextlib, io, json, os, sys
import duckdb, encodings.ascii, encodings.idna, encodings.latin_1
from probe.cli import main
from probe.cli.entry import run
os.chdir("/")
duckdb.connect().execute("SELECT 1").to_arrow_table()
os.setgroups([])
os.setgid(int(sys.argv[1]))
os.setuid(int(sys.argv[1]))
for words in json.loads(sys.argv[2]):
    told = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
        status = run(words)
    print(json.dumps([status, told.buffer.getvalue().decode()]), flush=True)
"""


@pytest.fixture(scope="module")
def job(start_once: Start, probe: Probe, tmp_path_factory: pytest.TempPathFactory) -> Target:
    """A job of OWNER, attached to by root."""
    script = tmp_path_factory.mktemp("job") / "job.py"
    script.write_text(JOB)
    made = start_once(script, env={"TMPDIR": "/tmp"})
    probe("attach", made.pid)
    return made


@pytest.fixture(scope="module")
def of_root(start_once: Start, probe: Probe) -> Target:
    made = start_once("waiting.py", "sleep")
    probe("attach", made.pid)
    return made


def facts(pid: int) -> Facts:
    found = agent_memory.facts(pid)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def as_user(command_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> AsUser:
    """The exit status of each command, and what it printed."""
    script = tmp_path_factory.mktemp("as_user") / "commands.py"
    script.write_text(AS_USER)

    def run(uid: int, *commands: Sequence[str | int]) -> list[tuple[int, str]]:
        asked = json.dumps([[*map(str, words)] for words in commands])
        done = command_server.run([sys.executable, str(script), str(uid), asked], os.environ, "", 120)
        assert done.returncode == 0, done.stderr
        return [(status, told) for status, told in map(json.loads, done.stdout.splitlines())]

    return run


def becoming(uid: int, work: Callable[[], Any]) -> Any:
    """What `work` returns, or the name of the OSError that it raises, for this user."""

    def tried() -> Any:
        try:
            return work()
        except OSError as error:
            return type(error).__name__

    return in_child_of_user(uid, tried)


VERBS = [("query", "SELECT 1"), ("eval", "--now", "1"), ("stack",), ("hang",), ("set", "sample=1"), ("detach",)]


@pytest.fixture(autouse=True)
def no_folder_left() -> Iterator[None]:
    """Nobody whom an attach is refused leaves a folder in a temporary folder."""

    def found() -> set[Path]:
        places = [
            folder for place in ("/tmp", "/dev/shm", "/var/tmp", "/run") for folder in Path(place).glob("probe-*")
        ]
        theirs = set[Path]()
        for folder in places:
            with suppress(FileNotFoundError):  # of another test, which has removed it
                if folder.is_dir() and folder.stat().st_uid in (OWNER, OTHER):
                    theirs.add(folder)
        return theirs

    before = found()
    yield
    until(lambda: found() <= before, why=lambda: found() - before)


def test_another_user_can_do_nothing_with_a_job(job: Target, as_user: AsUser) -> None:
    *asked, attach, listed = as_user(
        OTHER, *((job.pid, *words) for words in VERBS), ("attach", job.pid), ("list", "--all", "--format", "csv")
    )
    for status, told in asked:
        assert status == 3 and f"belongs to user {OWNER}" in told
    assert attach[0] == 4 and "[other-user]" in attach[1]
    assert listed[0] == 0 and len([line for line in listed[1].splitlines() if "," in line]) == 1  # the header
    assert job.alive and facts(job.pid).pid == job.pid


def test_a_user_can_do_nothing_with_roots_job(of_root: Target, as_user: AsUser) -> None:
    *asked, attach = as_user(OWNER, *((of_root.pid, *words) for words in VERBS), ("attach", of_root.pid))
    for status, told in asked:
        assert status == 3 and "belongs to user 0" in told
    assert attach[0] == 4 and "[other-user]" in attach[1]
    assert facts(of_root.pid).pid == of_root.pid


def test_a_list_has_the_own_jobs_and_their_servers(job: Target, of_root: Target, probe: Probe, as_user: AsUser) -> None:
    ((_, own),) = as_user(OWNER, ("list", "--all", "--format", "csv"))
    every = probe("list", "--all", "--format", "csv").stdout
    assert f"\n{job.pid}," in own and f"\n{job.pid}," in every
    assert f"\n{of_root.pid}," not in own and f"\n{of_root.pid}," in every
    mine, roots = str(facts(job.pid).server), str(facts(of_root.pid).server)
    assert mine in own and mine in every and roots not in own and roots in every


@pytest.mark.parametrize("name", ["header", "log", "spans"])
def test_another_user_cannot_read_the_agents_memory(job: Target, name: str) -> None:
    path = agent_memory.descriptors(job.pid)[name]
    assert becoming(OTHER, lambda: os.open(path, os.O_RDONLY)) == "PermissionError"
    assert becoming(OWNER, lambda: os.open(path, os.O_RDONLY)) != "PermissionError"


def folders(job: Target) -> list[Path]:
    """Of the agent's socket and of the server's."""
    said = facts(job.pid)
    return [Path(str(url).removeprefix("ipc://")).parent for url in (said.endpoint, said.server)]


@pytest.mark.parametrize("uid", [OTHER, 65534])
def test_another_user_can_neither_enter_nor_delete_the_folders_of_the_sockets(job: Target, uid: int) -> None:
    for folder in folders(job):
        socket = next(folder.iterdir())
        found = folder.stat()
        assert (found.st_uid, found.st_mode & 0o777) == (OWNER, 0o700)
        assert becoming(uid, lambda folder=folder: os.listdir(folder)) == "PermissionError"  # type: ignore[misc]
        assert becoming(uid, lambda socket=socket: socket.unlink()) == "PermissionError"  # type: ignore[misc]
        assert becoming(uid, lambda folder=folder: folder.rename(f"{folder}x")) == "PermissionError"  # type: ignore[misc]


def test_nobody_but_the_jobs_user_and_root_can_stop_the_server(job: Target) -> None:
    servers = [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and is_server(int(pid))]
    assert servers
    for pid in servers:
        assert becoming(OTHER, lambda pid=pid: os.kill(pid, 0)) == "PermissionError"  # type: ignore[misc]
        assert becoming(OWNER, lambda pid=pid: os.kill(pid, 0)) is None  # type: ignore[misc]


def is_server(pid: int) -> bool:
    try:
        name = Path(f"/proc/{pid}/comm").read_text()
        return name.startswith("probe-") and os.stat(f"/proc/{pid}").st_uid == OWNER
    except OSError:
        return False


def test_root_and_the_jobs_user_can_do_everything(job: Target, probe: Probe, as_user: AsUser) -> None:
    """Last, because it detaches."""
    does = [("stack",), ("hang",), ("set", "sample=1")]
    for words in does:
        probe(job.pid, *words)
    rows, mine = ("query", "--format", "csv", "SELECT pid FROM probe.agents"), ("eval", "--now", "os.getuid()")
    assert probe(job.pid, *rows).stdout == f"pid\n{job.pid}\n"
    assert probe(job.pid, *mine).stdout == f"{OWNER}\n"
    found = as_user(
        OWNER, *((job.pid, *words) for words in does), (job.pid, *rows), (job.pid, *mine), (job.pid, "detach"),
        ("attach", "--no-server", job.pid), (job.pid, "detach"),
    )  # fmt: skip
    assert [status for status, _ in found] == [0] * len(found), found
    asked, evaluated, detached, attached, again = (told for _, told in found[len(does) :])
    assert asked == f"pid\n{job.pid}\n" and evaluated.startswith(f"{OWNER}\n")
    assert detached.startswith("detached") and attached.startswith("attached") and again.startswith("detached")
    assert agent_memory.facts(job.pid) is None and job.alive
