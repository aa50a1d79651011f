"""The socket at a path where the agent's clients connect, made anew where the path has vanished.

Held by connections, on the agent's thread.  Invariant: its folder belongs to this user, who alone may enter it.
"""

from __future__ import annotations

import _socket
import contextlib
import os
import stat
from typing import Any

_WAITING = 64


class Listener:
    """socket: listens, and does not wait.  remove() on any thread."""

    def __init__(self, path: str) -> None:
        """Raises OSError."""
        self._path, self._removed = path, False
        self.socket = _listening_at(path)

    def restore(self) -> None:
        """Listen anew if something that cleans temporary folders has removed the path.  Cost: a call of stat."""
        if self._removed or os.path.exists(self._path):
            return
        folder = os.path.dirname(self._path)
        with contextlib.suppress(OSError):
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder, 0o700)
            found = os.lstat(folder)
            if found.st_uid == os.geteuid() and found.st_mode == stat.S_IFDIR | 0o700:
                socket = _listening_at(self._path)
                self.socket.close()
                self.socket = socket

    def remove(self) -> None:
        """Leave no path behind; the socket itself stays."""
        self._removed = True
        for remove, target in ((os.unlink, self._path), (os.rmdir, os.path.dirname(self._path))):
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
