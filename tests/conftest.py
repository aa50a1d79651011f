"""What all tests share: starting targets, running `probe`, and leaving everything as it was found."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from forked import COMMAND, ForkServer
from hypothesis import settings
from until import until

from target import PROBE, PYTHON, Probe, Start, descendants, starting

settings.register_profile("untimed", deadline=None)  # the machine may be busy: no test is judged by its time
settings.load_profile("untimed")

# A shell that starts this in the background has it ignore Ctrl-C, and all that it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

SETTLE_S = 3.0  # how long an ended thread, socket or process may take to be gone

gc.disable()  # until all is imported, which takes a fifth less time so: an import makes what stays


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """From now on the collector goes through what tests make, not through torch as well."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Or bindings would find leaks at the end."""
    gc.unfreeze()


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A TMPDIR with room for the path of a socket.  Ask for it before `start`, so that it goes after the targets."""
    with tempfile.TemporaryDirectory(prefix="probe-test-") as name:
        yield Path(name)


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    """Starts most targets at once."""
    server = ForkServer(PYTHON)
    yield server
    server.close()


@pytest.fixture
def start(tmp_path: Path, fork_server: ForkServer) -> Iterator[Start]:
    """Starts targets (see Start) and ends them with the test."""
    with starting(tmp_path, fork_server) as start:
        yield start


@pytest.fixture(scope="module")
def start_once(tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer) -> Iterator[Start]:
    """Likewise, for targets that all tests of a file share."""
    with starting(tmp_path_factory.mktemp("targets"), fork_server) as start:
        yield start


@pytest.fixture(scope="session")
def command_server() -> Iterator[ForkServer]:
    """Starts most commands at once."""
    server = ForkServer(sys.executable, COMMAND)
    yield server
    server.close()


@pytest.fixture(scope="session")
def probe(command_server: ForkServer) -> Probe:
    """Runs the `probe` command (see Probe) with its output captured."""

    def probe(
        *words: str | int | Path, status: int | None = 0, input: str = "", timeout: float = 60, fresh: bool = False
    ) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(PROBE), *map(str, words)]
        if not fresh and command_server.can_start(command, os.environ):
            done = command_server.run(command, os.environ, input, timeout)
        else:
            done = subprocess.run(command[1:], input=input, capture_output=True, text=True, timeout=timeout)
        assert status is None or done.returncode == status, f"exit {done.returncode}: {done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr or status == 1, done.stderr
        return done

    return probe


@pytest.fixture(autouse=True)
def left_as_found() -> Iterator[None]:
    """The test process has the threads, descriptors, children and signal handlers after a test that it had before."""
    before = found()
    yield

    def left_behind() -> dict[str, set[str]]:
        return {kind: things - before[kind] for kind, things in found().items() if things - before[kind]}

    def is_clean() -> bool:
        if not left_behind():
            return True
        gc.collect()
        return not left_behind()

    until(is_clean, SETTLE_S, why=left_behind)


def found() -> dict[str, set[str]]:
    return {
        "threads": {f"{thread.name} {thread.ident}" for thread in threading.enumerate()},
        "descriptors": {f"{fd} {link}" for fd, link in descriptors().items()},
        "children": set(map(str, descendants(os.getpid()))) if has_children() else set(),
        # SIGALRM is the test runner's own: its time-out.
        "signals": {f"{number} {signal.getsignal(number)}" for number in signal.valid_signals() - {signal.SIGALRM}},
    }


def has_children() -> bool:
    """Whether a thread of this process has any; to look at all processes takes long, for so many tests."""
    try:
        return any((task / "children").read_text() for task in Path("/proc/self/task").iterdir())
    except OSError:  # a thread has ended just now
        return True


def descriptors() -> dict[str, str]:
    """What each descriptor of this process is open on."""
    links = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            links[fd] = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:  # the listing's own
            continue
    return links
