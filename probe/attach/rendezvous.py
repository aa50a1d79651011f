"""Where the target and the command meet: a socket in a private directory that both can reach.

Used by `delivery`.  The directory lies in the target's file system and belongs to the target's user; it is gone before
the command ends, so a target that comes too late finds nobody and ends silently.  The next command sweeps what a killed
one left.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import stat
import time
from collections.abc import Generator

from ..host.process_status import Status
from ..host.processes import environment
from .refusals import refusal

PREFIX = "probe-attach-"
SOCKET = "s"
DIRECTORIES = ("/tmp", "/dev/shm", "/var/tmp", "/run")  # after the target's own TMPDIR
_OURS = re.compile(r"probe-attach-[0-9a-f]{16}|probe-(\d+)-[0-9a-f]{8}")  # a rendezvous; of a user's agent or server
_SOCKETS = re.compile(rf"{SOCKET}|server|\d+-\d+\.sock")
_ROOM = 107 - len(f"/{PREFIX}{'0' * 16}/{SOCKET}")  # bytes of a socket's path that the target connects to
STALE_SECONDS = 60.0  # younger ones may be about to be bound


class Rendezvous:
    """path: of the socket as the target sees it; listener: the socket on this side.  Whoever makes it closes it."""

    def __init__(self, pid: int, status: Status) -> None:
        """Raises AttachError when no directory will do."""
        for parent, path in open_directories(pid, status):
            try:
                self._make_in(parent, path, status)
                return
            except OSError:  # it is full, say
                os.close(parent)
        raise refusal("no-rendezvous", pid, directories=", ".join(DIRECTORIES))

    def _make_in(self, parent: int, path: str, status: Status) -> None:
        """Raises OSError, and has made nothing then."""
        name = PREFIX + os.urandom(8).hex()
        os.mkdir(name, 0o700, dir_fd=parent)
        try:
            directory = _open_made(parent, name)
        except BaseException:
            os.rmdir(name, dir_fd=parent)
            raise
        self._parent, self._name, self._directory = parent, name, directory
        self.path = f"{path}/{name}/{SOCKET}"
        self.listener = socket.socket(socket.AF_UNIX)
        try:
            # through the descriptor: a path in sun_path has 108 bytes only
            self.listener.bind(f"/proc/self/fd/{directory}/{SOCKET}")
            os.chmod(SOCKET, 0o600, dir_fd=directory)
            if os.geteuid() != status.uid:
                os.chown(SOCKET, status.uid, status.gid, dir_fd=directory, follow_symlinks=False)
                os.fchown(directory, status.uid, status.gid)
            self.listener.listen(4)
        except BaseException:
            self._remove()
            raise

    def close(self) -> None:
        self._remove()
        sweep(self._parent)
        os.close(self._parent)

    def _remove(self) -> None:
        self.listener.close()
        with contextlib.suppress(OSError):
            os.unlink(SOCKET, dir_fd=self._directory)
        os.close(self._directory)
        with contextlib.suppress(OSError):
            os.rmdir(self._name, dir_fd=self._parent)


def _open_made(parent: int, name: str) -> int:
    """The directory that has just been made, and no other: the parent may be the target's, which could put or mount one
    there that only root may enter, to be given it.  Raises OSError.
    """
    directory = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    found = os.fstat(directory)
    is_ours = found.st_uid == os.geteuid() and found.st_mode & 0o777 == 0o700
    if is_ours and found.st_dev == os.fstat(parent).st_dev and not os.listdir(directory):
        return directory
    os.close(directory)
    raise PermissionError(errno.EPERM, "another directory is there", name)


def sweep(parent: int) -> None:
    """Remove what killed commands and killed targets left in this directory: old folders in which nobody listens.

    What is not certainly ours stays: another owner or mode than we give, another name, anything but sockets in it.
    """
    for name in os.listdir(parent):
        if match := _OURS.fullmatch(name):
            with contextlib.suppress(OSError):
                _sweep_one(parent, name, match[1])


def _sweep_one(parent: int, name: str, uid: str | None) -> None:
    directory = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    try:
        found = os.fstat(directory)
        private = stat.S_IMODE(found.st_mode) == 0o700 and uid in (None, str(found.st_uid))
        if not private or time.time() - found.st_mtime < STALE_SECONDS:
            return
        sockets = os.listdir(directory)
        if not all(_is_left_socket(directory, each, found.st_uid) for each in sockets):
            return
        for each in sockets:
            os.unlink(each, dir_fd=directory)
    finally:
        os.close(directory)
    os.rmdir(name, dir_fd=parent)


def _is_left_socket(directory: int, name: str, uid: int) -> bool:
    """Whether it is one of ours in which nobody listens."""
    found = os.stat(name, dir_fd=directory, follow_symlinks=False)
    ours = _SOCKETS.fullmatch(name) and stat.S_ISSOCK(found.st_mode) and found.st_uid == uid
    return bool(ours) and not _is_answered(directory, name)


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


def open_directory(pid: int, status: Status) -> tuple[int, str]:
    """The first of open_directories().  Raises AttachError if there is none."""
    with contextlib.closing(open_directories(pid, status)) as found:
        for descriptor, path in found:
            return descriptor, path
    raise refusal("no-rendezvous", pid, directories=", ".join(DIRECTORIES))


def open_directories(pid: int, status: Status) -> Generator[tuple[int, str], None, None]:
    """Directories of the target in which we can make another: descriptor, path as the target sees it.  Whoever takes
    one closes it."""
    own = environment(pid).get("TMPDIR", "")
    for path in (own, *DIRECTORIES) if own.startswith("/") else DIRECTORIES:
        if len(os.fsencode(path.rstrip("/"))) > _ROOM:
            continue
        try:
            descriptor = _walk(status, f"/proc/{pid}/root", path)
        except OSError:
            continue
        writable = os.access(f"/proc/self/fd/{descriptor}", os.W_OK | os.X_OK)
        if writable and _may_enter(status, os.fstat(descriptor)):
            yield descriptor, path.rstrip("/")
        else:
            os.close(descriptor)


def _walk(status: Status, root: str, path: str) -> int:
    """Open the directory without following links: an absolute one would lead out of the target's file system."""
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
    """Whether the target may enter it; its supplementary groups are left out."""
    if status.uid in (0, directory.st_uid):
        return status.uid == 0 or bool(directory.st_mode & stat.S_IXUSR)
    return bool(directory.st_mode & (stat.S_IXGRP if status.gid == directory.st_gid else stat.S_IXOTH))
