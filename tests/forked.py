"""Targets that start at once: forks of a process that has imported torch, which takes seconds of a processor.

A script that imports fast_import is run in such a fork.  It has a session, a standard output, a command line and an
environment of its own, also in /proc, and no other descriptor.  What differs from a process that its command started:
its parent is the fork server, its first frame is in fork_server.py, and all such targets share a layout of the memory.
Ranks have a launcher that has imported nothing: it forks them, and then becomes what its own command starts.
"""

from __future__ import annotations

import contextlib
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
from typing import IO

TARGETS = Path(__file__).parent / "targets"
LAUNCHER = TARGETS / "launcher.py"
READ_LATE = ("TMPDIR", "TORCH_FR_BUFFER_SIZE", "PROBE_", "PLAYED_")  # nothing reads these while torch is imported


class Forked:
    """A target, with what tests use of subprocess.Popen."""

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
            raise subprocess.TimeoutExpired(f"target {self.pid}", timeout or 0)
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
    """The tests' end of fork_server.py.  Any thread may use it.  env: what is read while torch is imported."""

    def __init__(self, python: str, env: Mapping[str, str] | None = None) -> None:
        self._python, self._env = python, {"OMP_NUM_THREADS": "1", **(env or {})}
        self._lock = threading.Lock()
        self._statuses = dict[int, int]()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [python, str(TARGETS / "fork_server.py"), str(theirs.fileno())]
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True,
                env={**os.environ, **self._env},
            )  # fmt: skip

    def can_start(self, command: Sequence[str], env: Mapping[str, str]) -> bool:
        python, script = _rank_command(command)[:2]
        late = all(name.startswith(READ_LATE) or self._env.get(name) == value for name, value in env.items())
        return late and python == self._python and script.endswith(".py") and _imports_at_once(Path(script))

    def start(self, command: Sequence[str], env: Mapping[str, str], output: IO[bytes]) -> Forked:
        ranks = _rank_command(command)
        request = {
            "command": ranks,
            "launcher": list(command) if ranks != list(command) else None,
            "env": dict(env),
            "cwd": os.getcwd(),
        }
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(request).encode()], [output.fileno()])
            while "started" not in (told := self._receive()):
                pass
        return Forked(self, told["started"])

    def status(self, pid: int, timeout: float | None) -> int | None:
        """How the target has ended, as in Popen.returncode; None: not within `timeout` seconds."""
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

    def _receive(self) -> dict[str, int]:
        message = self._socket.recv(1 << 10)
        assert message, f"the fork server has ended: {self._process.wait()}"
        told: dict[str, int] = json.loads(message)
        if "ended" in told:
            self._statuses[told["ended"]] = told["status"]
        return told


def _rank_command(command: Sequence[str]) -> list[str]:
    """That of each rank, where the command is the launcher's."""
    return [command[0], *command[3:]] if command[1] == str(LAUNCHER) else list(command)


def _imports_at_once(script: Path) -> bool:
    return "import fast_import" in script.read_text()
