"""Targets and commands that start at once: forks of a process that has imported what takes most of their start.

A script that imports fast_import, hence torch, is run in such a fork, and so is the `probe` command.  It has standard
streams, a command line, an environment and a directory of its own, also in /proc, and no other descriptor; a target has
a session too, and a command is in that of the tests.  What differs from a process that its command started: its parent
is the fork server, whose name, limits and umask it has, its first frame is in fork_server.py, and all such processes
share a layout of the memory and the seed of hash().  A command has imported what any verb needs, also what it would
import late or never, and numpy has no threads; to test what a verb imports, start it afresh.
Ranks have a launcher that has imported nothing: it forks them, and then becomes what its own command starts.
After `ip netns exec NAME` the rest of the command runs in that network namespace.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

TARGETS = Path(__file__).parent / "targets"
LAUNCHER = TARGETS / "launcher.py"
READ_LATE = (  # no import reads these
    "RANK", "WORLD_SIZE", "MASTER_", "GLOO_", "NCCL_", "TMPDIR", "TORCH_FR_BUFFER_SIZE", "TORCHINDUCTOR_CACHE_DIR",
    "PROBE_", "PLAYED_", "PYTEST_", "TORCH_NCCL_",
)  # fmt: skip


class Imported(NamedTuple):
    """A module of tests/targets, and the line by which one knows a script that would import it, or the same."""

    module: str
    line: str


TORCH = Imported("fast_import", "import fast_import")
COMMAND = Imported("every_verb", "from probe.cli import main")


class Forked:
    """A target or a command, with what tests use of subprocess.Popen."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self._server = server
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._server.status(self.pid, 0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self.returncode = self._server.status(self.pid, timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """The tests' end of fork_server.py.  Any thread may use it.  env: what is read while the module is imported."""

    def __init__(self, python: str, imported: Imported = TORCH, env: Mapping[str, str] | None = None) -> None:
        self._python, self._imported = python, imported
        self._env = {"OMP_NUM_THREADS": "1", **(env or {})}
        self._environ = {**os.environ, **self._env}
        self._lock = threading.Lock()
        self._statuses = dict[int, int]()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # As stdout too: a fork's streams are no terminal and cannot seek, whatever those of the tests are.
            command = [python, str(TARGETS / "fork_server.py"), imported.module]
            self._process = subprocess.Popen(command, stdin=theirs.fileno(), stdout=theirs.fileno(), env=self._environ)

    def can_start(self, command: Sequence[str], env: Mapping[str, str]) -> bool:
        """env: all of it."""
        python, script = _rank_command(_inside(command)[1])[:2]
        differ = env.items() ^ self._environ.items()
        late = all(name.startswith(READ_LATE) or self._env.get(name) == value for name, value in differ)
        return late and python == self._python and self._runs(Path(script))

    def start(
        self, command: Sequence[str], env: Mapping[str, str], streams: Sequence[int], session: bool = True
    ) -> Forked:
        """streams: descriptors of its standard input, output and error."""
        namespace, command = _inside(command)
        ranks = _rank_command(command)
        request = {
            "namespace": namespace,
            "command": ranks,
            "launcher": list(command) if ranks != list(command) else None,
            "env": dict(env),
            "cwd": os.getcwd(),
            "session": session,
        }
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(request).encode()], streams)
            while "started" not in (told := self._receive()):
                pass
        return Forked(self, told["started"])

    def run(
        self, command: Sequence[str], env: Mapping[str, str], input: str, timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """As subprocess.run() does, with its output captured as text.  input: no more than a pipe holds."""
        (stdin, given), (out, stdout), (err, stderr) = (os.pipe() for _ in range(3))
        with open(given, "w") as file:
            file.write(input)
        process = self.start(command, env, (stdin, stdout, stderr), session=False)
        for each in (stdin, stdout, stderr):
            os.close(each)
        try:
            said = _read_all((out, err), timeout)
            return subprocess.CompletedProcess(command, process.wait(timeout), *said)
        except TimeoutError:
            raise subprocess.TimeoutExpired(command, timeout) from None
        finally:
            process.kill()
            process.wait()
            os.close(out)
            os.close(err)

    def status(self, pid: int, timeout: float | None) -> int | None:
        """How the process has ended, as in Popen.returncode; None: not within `timeout` seconds."""
        end = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            while pid not in self._statuses:
                left = None if end is None else max(0.0, end - time.monotonic())
                if not select.select([self._socket], [], [], left)[0]:
                    return None
                self._receive()
            return self._statuses[pid]

    def close(self) -> None:
        self._socket.close()
        self._process.wait()

    def _runs(self, script: Path) -> bool:
        return script.is_file() and self._imported.line in script.read_text()

    def _receive(self) -> dict[str, int]:
        message = self._socket.recv(1 << 10)
        assert message, f"the fork server has ended: {self._process.wait()}"
        told: dict[str, int] = json.loads(message)
        if "ended" in told:
            self._statuses[told["ended"]] = told["status"]
        else:  # another process may have had this number
            self._statuses.pop(told["started"], None)
        return told


def _inside(command: Sequence[str]) -> tuple[str, Sequence[str]]:
    """The network namespace in which a command is to run, if any, and the command itself."""
    return (command[3], command[4:]) if tuple(command[:3]) == ("ip", "netns", "exec") else ("", command)


def _rank_command(command: Sequence[str]) -> list[str]:
    """That of each rank, where the command is the launcher's."""
    return [command[0], *command[3:]] if command[1] == str(LAUNCHER) else list(command)


def _read_all(pipes: Sequence[int], timeout: float) -> list[str]:
    """The text that comes of each until nobody has its other end.  Raises TimeoutError."""
    end = time.monotonic() + timeout
    came = {pipe: bytearray() for pipe in pipes}
    unread = list(pipes)
    while unread:
        left = end - time.monotonic()
        ready = select.select(unread, [], [], left)[0] if left > 0 else []
        if not ready:
            raise TimeoutError
        for pipe in ready:
            piece = os.read(pipe, 1 << 16)
            came[pipe] += piece
            if not piece:
                unread.remove(pipe)
    return [io.TextIOWrapper(io.BytesIO(each)).read() for each in came.values()]
