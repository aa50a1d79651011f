"""Prepares the server of a job, and starts it: its sockets listen before there is a process, so nobody waits for one,
but for the keeper, which takes some 20 ms: it may be that its Python does not start.

Called by attach, and by a command that finds a job without its server.  Invariant: a server that was prepared and not
started leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..attach.refusals import refusal
from ..host.processes import namespace, read_stat
from ..host.system_calls import memfd_create
from ..protocol import CONTROL, READ
from .handover import CONFIG, IPC, KEEPER, KEEPER_MODULE, SOCKET, TCP, command, is_there, remove, spawn

_DIRECTORIES = ("/tmp", "/dev/shm", "/var/tmp", "/run")  # after TMPDIR
_MOST_FOLDER = 60  # bytes; readers prepend /proc/PID/root
_WAITING = 128  # clients, while there is no server
_KEEPER_S, _LOOK_S = 2.0, 0.002  # the most that the keeper may take until it has its name, on a busy machine


class Prepared:
    """A server whose sockets listen, and which no process serves yet.  Use it as a context manager; start() it inside.

    served: what agents have to know of it (Agent.adopt).
    """

    def __init__(self, pid: int, uid: int, gid: int, listen: Mapping[str, Any] | None = None) -> None:
        """pid: of a process of the job; uid, gid: as whom it runs.  listen: a port for other hosts, and the keys
        (Listen.order).

        Raises OSError if there is no room for its folder, AttachError if the port cannot be had.
        """
        self._pid, self._uid, self._gid, self._listen = pid, uid, gid, listen
        self._sockets: list[socket.socket] = []
        self._is_started = False
        self._folder = _folder(uid)
        try:
            self._bind_path()
            tcp = None if listen is None else self._bind_port(listen["address"], listen["port"])
        except BaseException:
            self.close()
            raise
        self.endpoint = f"ipc://{self._folder}/{SOCKET}"
        self.served: dict[str, Any] = {"server": self.endpoint, "tcp": None}
        if listen is not None and tcp is not None:
            self.served["tcp"] = {"host": listen["host"], "address": listen["address"], "port": tcp,
                                  "public": listen["public"], "key_file": listen["key_file"],
                                  "other_network": _is_in_another_network(pid)}  # fmt: skip

    @property
    def endpoints(self) -> list[str]:
        port = self.served["tcp"]
        return [self.endpoint, *([f"tcp://{port['host']}:{port['port']}"] if port else [])]

    def __enter__(self) -> Prepared:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start the keeper, and wait until it runs, but not for the server.  Raises OSError, AttachError."""
        descriptor = memfd_create("probe-config")
        try:
            os.pwrite(descriptor, json.dumps(self._config()).encode(), 0)
            listening = dict(zip((IPC, TCP), (each.fileno() for each in self._sockets), strict=False))
            keeper = spawn(command(KEEPER_MODULE, self.endpoint), {**listening, CONFIG: descriptor})
        finally:
            os.close(descriptor)
        self._is_started = True  # before anything can interrupt this: the folder is the keeper's
        if not _comes_up(keeper):
            self._is_started = False
            raise refusal("server-ends", self._pid, python=sys.executable)

    def run(self) -> None:
        """Be the server, in this process, until its last agent is gone, Ctrl-C or SIGTERM."""
        from .agents import Agents
        from .server import Server, prepared_process

        self._is_started = True
        given = self._config()
        prepared_process(given)
        server = Server(given, Agents(self.endpoint, self._uid), *(each.detach() for each in self._sockets))
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            server.run()
        except KeyboardInterrupt:
            pass
        finally:
            server.close()
            remove(self._folder)

    def close(self) -> None:
        for each in self._sockets:
            each.close()
        if not self._is_started:
            remove(self._folder)

    def _config(self) -> dict[str, Any]:
        listen, tcp = self._listen, self.served["tcp"]
        roles = set(listen["roles"].values()) if listen is not None else {CONTROL}
        numeric = tcp and (f"[{tcp['address']}]" if ":" in tcp["address"] else tcp["address"])
        return {
            "endpoint": self.endpoint,
            "folder": self._folder,
            "role": CONTROL if CONTROL in roles else READ,
            "key": listen and {"secret": listen["secret"], "roles": listen["roles"]},
            "tcp": tcp and f"tcp://{numeric}:{tcp['port']}",
            "pid": self._pid,
            "uid": self._uid,
            "gid": self._gid,
            "python_path": [str(Path(__file__).parents[2]), *filter(os.path.isabs, sys.path)],
        }

    def _bind_path(self) -> None:
        """In the folder, which its user gets last of all: from then on any name in it may be something else."""
        made = self._socket(socket.AF_UNIX)
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            made.bind(f"{self._folder}/{SOCKET}")
            os.chmod(SOCKET, 0o600, dir_fd=folder)
            made.listen(_WAITING)
            if os.geteuid() != self._uid:
                os.chown(SOCKET, self._uid, self._gid, dir_fd=folder, follow_symlinks=False)
                os.fchown(folder, self._uid, self._gid)
        finally:
            os.close(folder)

    def _bind_port(self, address: str, port: int) -> int:
        made = self._socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind((address, port))
            made.listen(_WAITING)
        except OSError as error:
            code = "port-in-use" if error.errno == errno.EADDRINUSE else "cannot-listen"
            raise refusal(code, why=f"{address}:{port}: {error.strerror}") from None
        return int(made.getsockname()[1])

    def _socket(self, family: int) -> socket.socket:
        made = socket.socket(family)
        made.setblocking(False)  # for libzmq, which takes it over as it is
        self._sockets.append(made)
        return made


def _is_in_another_network(pid: int) -> bool:
    """As in a container, whose addresses do not lead to a port that is opened here."""
    return namespace(pid, "net") not in ("", namespace(os.getpid(), "net"))


def _comes_up(keeper: int) -> bool:
    """False if it has ended before it had its name, as where its Python lacks something of the environment."""
    end = time.monotonic() + _KEEPER_S
    while time.monotonic() < end and is_there(keeper):
        if read_stat(keeper).name == KEEPER:
            return True
        time.sleep(_LOOK_S)
    return is_there(keeper)


def _folder(uid: int) -> str:
    """A new directory for the server of this user, which only we can enter.  Raises OSError."""
    parents = [os.environ.get("TMPDIR") or "/tmp", *_DIRECTORIES]
    for parent in parents:
        folder = f"{os.path.abspath(parent)}/probe-{uid}-{os.urandom(4).hex()}"
        if len(os.fsencode(folder)) <= _MOST_FOLDER:
            with contextlib.suppress(OSError):
                os.mkdir(folder, 0o700)
                return folder
    raise OSError(f"no directory for the server's socket could be made in any of {', '.join(parents)}")
