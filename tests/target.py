"""Targets of tests: small real programs, started as users start them and ended for certain."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from forked import LAUNCHER as LAUNCHER
from forked import TARGETS as TARGETS
from forked import Forked, ForkServer
from until import until

from probe.host import agent_memory
from probe.host.facts import NO_FACTS

PROBE = Path(sys.executable).parent / "probe"
PYTHON = os.environ.get("TARGET_PYTHON", sys.executable)  # the targets' own: make soak runs them on others
TORCHRUN = (PYTHON, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1")
# The beginning of a script that a test writes, by which it is forked.
FAST_IMPORT = f"import sys; sys.path.append({str(TARGETS)!r}); import fast_import"
# What `probe attach` prints of a rank.
ATTACHED = re.compile(r"attached  rank (\d)  pid (\d+)  \d+ ms +python 3\.\d+\.\d+, torch \d+\.\d+\.\d+\n")
START_S = 90.0  # importing torch in several processes on a busy machine


class Target:
    """A running process under test, with all that it started: its pid, its output, its end."""

    process: subprocess.Popen[bytes] | Forked

    def __init__(
        self, command: tuple[str, ...], output: Path, env: dict[str, str], server: ForkServer | None = None
    ) -> None:
        self._output = output
        whole = {**os.environ, "OMP_NUM_THREADS": "1", **env}
        with output.open("wb") as stream, open(os.devnull) as nothing:
            if server and server.can_start(command, whole):
                self.process = server.start(command, whole, [nothing.fileno(), stream.fileno(), stream.fileno()])
            else:
                self.process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT,
                    start_new_session=True, env=whole,
                )  # fmt: skip

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def output(self) -> str:
        return self._output.read_text(errors="replace")

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def wait_for(self, text: str, times: int = 1, timeout: float = START_S) -> str:
        """The output, once it holds `text` that many times."""

        def said() -> bool:
            alive = self.alive  # asked first: what it said last counts
            found = self.output.count(text) >= times
            assert found or alive, f"ended with {self.process.returncode} before {text!r}:\n{self.output}"
            return found

        until(said, timeout, why=lambda: f"no {text!r}:\n{self.output}")
        return self.output

    def end(self) -> None:
        """Nothing of it runs any more: in order where it listens to SIGTERM, by SIGKILL where it does not."""
        family = descendants(self.pid) | {self.pid: ""}
        if self.alive:
            self.process.send_signal(signal.SIGCONT)  # it may end just now
            self.process.terminate()
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for pid, start in family.items():
            if start_time(pid) == start:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            remove_socket(pid)


class Start(Protocol):
    """start("job.py", "--steps", "9", ready="ready", ranks=2): a target out of tests/targets, or of any path.

    It has printed `ready` (once a rank) when this returns; ready="" waits for nothing.  With `ranks` the target is what
    has started them: a launcher, which imports no torch and so takes half the time, or torchrun.
    """

    def __call__(
        self, script: str | Path, *args: str, ready: str = ..., ranks: int = ..., torchrun: bool = ...,
        env: dict[str, str] | None = ...,
    ) -> Target: ...  # fmt: skip


class Probe(Protocol):
    """probe(4242, "query", "SELECT 1"): the command as users run it; its exit status must be `status` (None: any).

    It is forked, unless it is to start `fresh`, for what matters of its start: the modules that it imports, and when.
    """

    def __call__(
        self, *words: str | int | Path, status: int | None = ..., input: str = ..., timeout: float = ...,
        fresh: bool = ...,
    ) -> subprocess.CompletedProcess[str]: ...  # fmt: skip


@contextmanager
def starting(folder: Path, server: ForkServer | None) -> Iterator[Start]:
    """A Start whose targets write their output into this folder, and end with the block."""
    targets: list[Target] = []

    def start(
        script: str | Path, *args: str, ready: str = "ready", ranks: int = 0, torchrun: bool = False,
        env: dict[str, str] | None = None,
    ) -> Target:  # fmt: skip
        several = (*TORCHRUN, "--log-dir", str(folder), "--nproc-per-node") if torchrun else (PYTHON, str(LAUNCHER))
        command = (*((*several, str(ranks)) if ranks else (PYTHON,)), str(TARGETS / script), *args)
        targets.append(Target(command, folder / f"target-{len(targets)}.txt", env or {}, server))
        if ready:
            targets[-1].wait_for(ready, times=max(1, ranks))
        return targets[-1]

    try:
        yield start
    finally:
        for target in targets:
            target.end()


def descendants(pid: int) -> dict[int, str]:
    """Every process below pid that is no zombie, with its start time."""
    children: dict[int, list[int]] = {}
    starts: dict[int, str] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        if fields := stat(int(name)):
            children.setdefault(int(fields[1]), []).append(int(name))
            starts[int(name)] = fields[19]
    below, todo = {}, [pid]
    while todo:
        found = children.get(todo.pop(), [])
        todo += found
        below.update({child: starts[child] for child in found})
    return below


def links(pid: int) -> list[str]:
    """What its descriptors stand for."""
    found = []
    for number in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed since it was listed
            found.append(os.readlink(f"/proc/{pid}/fd/{number}"))
    return found


def until_ticked(pid: int) -> None:
    """Its agent has looked at what is new, and written down how it is, since now; it does so once a second."""
    now = time.monotonic_ns()
    until(lambda: (agent_memory.facts(pid) or NO_FACTS).monotonic_ns > now)


def remove_socket(pid: int) -> None:
    """What the agent of a process leaves that was killed: its socket, in a folder of its own."""
    with contextlib.suppress(FileNotFoundError):  # folders of other agents come and go while it looks
        for socket in Path("/tmp").glob(f"probe-*/{pid}-*.sock"):
            socket.unlink()
            socket.parent.rmdir()


def start_time(pid: int) -> str | None:
    fields = stat(pid)
    return fields[19] if fields else None


def stat(pid: int) -> list[str]:
    """/proc/pid/stat from the state on; empty for one that has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [] if fields[0] == "Z" else fields
