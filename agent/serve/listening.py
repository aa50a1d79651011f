"""The socket at a path where the agent's clients connect, made anew where the path has vanished; who connects.

Made with the agent, held by connections, on the agent's thread.  Invariant: its folder belongs to this user, who alone
may enter it, and its path means the same to readers, who come to it through /proc/<pid>/root.
"""

from __future__ import annotations

import _socket
import contextlib
import os
import stat
import struct
from typing import Any

from ... import protocol as wire
from ..storage.descriptors import close, is_same

_PARENTS = ("/tmp", "/dev/shm", "/var/tmp", "/run")  # after TMPDIR
_MOST_FOLDER = 60  # bytes of 107: readers on this host prepend /proc/<pid>/root, and the socket's name is appended
_WAITING = 64
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


def listener_in_new_folder(name: str) -> Listener:
    """At a socket of this name, in the first directory that takes one.  Raises OSError."""
    parents = [os.environ.get("TMPDIR") or "/tmp", *_PARENTS]
    why = ""
    for parent in parents:
        try:
            return _listener_below(os.path.realpath(parent), name)
        except OSError as error:
            why = error.strerror or str(error)
    raise OSError(f"no directory for a socket could be made in any of {', '.join(parents)}: {why}")


def _listener_below(parent: str, name: str) -> Listener:
    """parent: absolute and free of links, which would lead readers out of the job's file system."""
    folder = f"{parent}/probe-{os.geteuid()}-{os.urandom(4).hex()}"
    if len(os.fsencode(folder)) > _MOST_FOLDER or not folder.isprintable():  # readers refuse what is not
        raise OSError(f"{folder!r} is no path for a socket")
    os.mkdir(folder, 0o700)
    try:
        return Listener(f"{folder}/{name}")
    except BaseException:  # a file system without sockets
        os.rmdir(folder)
        raise


class Listener:
    """socket: listens at path, and does not wait.  remove() on any thread."""

    def __init__(self, path: str) -> None:
        """Raises OSError."""
        self.path, self._removed, self._owner = path, False, os.getpid()
        self.socket = _listening_at(path)
        self._known = os.fstat(self.socket.fileno())

    def restore(self) -> None:
        """Listen anew if something that cleans temporary folders has removed the path, or the job has closed the
        socket.  Cost: a call of stat."""
        if self._removed or (self.is_open and os.path.exists(self.path)):
            return
        folder = os.path.dirname(self.path)
        with contextlib.suppress(OSError):
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder, 0o700)
            found = os.lstat(folder)
            if found.st_uid == os.geteuid() and found.st_mode == stat.S_IFDIR | 0o700:
                if not self.is_open:
                    with contextlib.suppress(FileNotFoundError):  # the last time it was not bound again
                        os.unlink(self.path)
                socket = _listening_at(self.path)
                self.close()
                self.socket, self._known = socket, os.fstat(socket.fileno())

    @property
    def is_open(self) -> bool:
        return is_same(self.socket.fileno(), self._known)

    def close(self) -> None:
        """Listen no more; restore() may."""
        close(self.socket, self._known)

    def remove(self) -> None:
        """Leave no path behind; the socket itself stays.  In a forked child the path is the parent's, and stays too."""
        self._removed = True
        if os.getpid() != self._owner:
            return
        for remove, target in ((os.unlink, self.path), (os.rmdir, os.path.dirname(self.path))):
            with contextlib.suppress(OSError):
                remove(target)


def _listening_at(path: str) -> Any:
    made = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        made.setblocking(False)
        made.bind(path)
        made.listen(_WAITING)
    except BaseException:
        made.close()
        raise
    return made


def peer_uid(socket: Any) -> int:
    """As whom the process ran that has connected."""
    found = _CREDENTIALS.unpack(socket.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(found[1])


def refuse(socket: Any, code: str, message: str) -> None:
    """Say why, as far as that is possible without waiting, and close."""
    with contextlib.suppress(OSError):
        socket.setblocking(False)
        frames = [b"", wire.encode(wire.ERROR, code=code, message=message)]
        socket.sendmsg(wire.packed(frames), [], _socket.MSG_NOSIGNAL)
    socket.close()
