"""Processes that the server starts for what it does not do itself: without a port, without keys, ended with it.

Used by answers, stacks and profiles.  Invariant: such a process inherits no descriptor but its end of a socket pair and
the config, which for it has no key; who is ended is waited for.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from typing import Any, ClassVar

from ..host.system_calls import memfd_create
from .handover import CONFIG, IPC, command, is_there, spawn

ENDED = "the process for that has ended. Try again; or attach with a Python that the job's user can read"


class Sibling:
    """socket: to the process, which ends when that is closed.  main() of the module is run."""

    _ended: ClassVar = list[int]()  # killed, but not gone yet: each thread has to be scheduled once more

    def __init__(self, module: str, given: dict[str, Any], descriptors: tuple[int, ...] = (IPC,)) -> None:
        """given: the server's config; descriptors: the numbers that the process finds its end of the socket at.

        Raises OSError.
        """
        self.socket, theirs = socket.socketpair()
        config = memfd_create("probe-config")
        try:
            os.pwrite(config, json.dumps({**given, "key": None}).encode(), 0)
            ends = dict.fromkeys(descriptors, theirs.fileno())
            self.pid = spawn(command(module, given["endpoint"]), {**ends, CONFIG: config})
        except OSError:
            self.socket.close()
            raise
        finally:
            os.close(config)
            theirs.close()

    def close(self) -> None:
        """End it."""
        self.socket.close()
        os.kill(self.pid, signal.SIGKILL)  # it is there until it is reaped
        self._ended.append(self.pid)
        self.reap()

    @classmethod
    def reap(cls) -> None:
        """Once a second: of all that were ended."""
        cls._ended[:] = [pid for pid in cls._ended if is_there(pid)]


def why_not_started(error: OSError) -> str:
    """In words, with the remedy."""
    return f"{sys.executable}: {error.strerror}. Attach with a Python that the job's user can read"
