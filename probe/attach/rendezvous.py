"""The place where the target and the command meet: a socket in a private directory that both can reach.

Used by `delivery`.  The directory lies in the target's file system and belongs to the target's user; it is
gone before the command ends, so a target that comes too late finds nobody and ends silently.  What a killed
command left is swept by the next one.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import stat
import time
from types import TracebackType

from ..errors import AttachError
from ..host.process_status import Status

PREFIX = "probe-attach-"
SOCKET = "s"
PLACES = ("/tmp", "/dev/shm", "/var/tmp", "/run")  # after the target's own TMPDIR
_OURS = re.compile(r"probe-attach-[0-9a-f]{16}|probe-\d+-[0-9a-f]{8}")  # a rendezvous; the folder of an agent's socket
_ROOM = 107 - len(f"/{PREFIX}{'0' * 16}/{SOCKET}")  # bytes of a socket's path that the target connects to
STALE_SECONDS = 60.0  # younger ones may be about to be bound


class Rendezvous:
    """`path`: of the socket as the target sees it; `listener`: its socket here.  A context manager."""

    def __init__(self, pid: int, status: Status) -> None:
        """Raises AttachError when no directory serves."""
        self._parent, place = _open_place(pid, status)
        sweep(self._parent)
        self._name = PREFIX + os.urandom(8).hex()
        self.path = f"{place}/{self._name}/{SOCKET}"
        os.mkdir(self._name, 0o700, dir_fd=self._parent)
        self._directory = os.open(self._name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=self._parent)
        self.listener = socket.socket(socket.AF_UNIX)
        try:
            self._open(status)
        except BaseException:
            self.close()
            raise

    def _open(self, status: Status) -> None:
        # through the descriptor: a path in sun_path has 108 bytes only
        self.listener.bind(f"/proc/self/fd/{self._directory}/{SOCKET}")
        os.chmod(SOCKET, 0o600, dir_fd=self._directory)
        if os.geteuid() != status.uid:
            os.chown(SOCKET, status.uid, status.gid, dir_fd=self._directory, follow_symlinks=False)
            os.fchown(self._directory, status.uid, status.gid)
        self.listener.listen(4)

    def close(self) -> None:
        self.listener.close()
        with contextlib.suppress(OSError):
            os.unlink(SOCKET, dir_fd=self._directory)
        os.close(self._directory)
        with contextlib.suppress(OSError):
            os.rmdir(self._name, dir_fd=self._parent)
        os.close(self._parent)

    def __enter__(self) -> Rendezvous:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def sweep(parent: int) -> None:
    """Remove what killed commands and killed targets left in this directory: old, and nobody listens."""
    for name in os.listdir(parent):
        if _OURS.fullmatch(name):
            with contextlib.suppress(OSError):
                _sweep_one(parent, name)


def _sweep_one(parent: int, name: str) -> None:
    facts = os.stat(name, dir_fd=parent, follow_symlinks=False)
    if time.time() - facts.st_mtime < STALE_SECONDS:
        return
    directory = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    try:
        sockets = os.listdir(directory)
        if any(_is_answered(directory, each) for each in sockets):
            return
        for each in sockets:
            os.unlink(each, dir_fd=directory)
    finally:
        os.close(directory)
    os.rmdir(name, dir_fd=parent)


def _is_answered(directory: int, name: str) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        client.setblocking(False)
        try:
            client.connect(f"/proc/self/fd/{directory}/{name}")
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True
    return True


def find_place(pid: int, status: Status) -> str:
    """The path, as the target sees it, of a directory that serves.  Raises AttachError."""
    descriptor, place = _open_place(pid, status)
    os.close(descriptor)
    return place


def _open_place(pid: int, status: Status) -> tuple[int, str]:
    """A directory of the target in which we can make another: (descriptor, path as the target sees it)."""
    for place in (*_own_choice(pid), *PLACES):
        if len(os.fsencode(place.rstrip("/"))) > _ROOM:
            continue
        try:
            descriptor = _walk(status, f"/proc/{pid}/root", place)
        except OSError:
            continue
        writable = os.access(f"/proc/self/fd/{descriptor}", os.W_OK | os.X_OK)
        if writable and _may_enter(status, os.fstat(descriptor)):
            return descriptor, place.rstrip("/")
        os.close(descriptor)
    raise AttachError(
        f"Process {pid} has no directory that both of you can write to ({', '.join(PLACES)}).",
        "Give the job's container a writable /tmp.",
        "no-rendezvous",
    )


def _own_choice(pid: int) -> list[str]:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
        for entry in file.read().split(b"\0"):
            if entry.startswith(b"TMPDIR=/"):
                return [os.fsdecode(entry.partition(b"=")[2])]
    return []


def _walk(status: Status, root: str, path: str) -> int:
    """Open the directory, following no link: an absolute one would lead out of the target's file system."""
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    for part in filter(None, path.split("/")):
        try:
            if part == ".." or not _may_enter(status, os.fstat(descriptor)):
                raise PermissionError(path)
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        descriptor = inner
    return descriptor


def _may_enter(status: Status, directory: os.stat_result) -> bool:
    """Whether the target may; its supplementary groups are left out."""
    if status.uid in (0, directory.st_uid):
        return status.uid == 0 or bool(directory.st_mode & stat.S_IXUSR)
    return bool(directory.st_mode & (stat.S_IXGRP if status.gid == directory.st_gid else stat.S_IXOTH))
