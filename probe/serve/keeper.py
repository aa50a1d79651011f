"""The keeper: a small process without ZeroMQ that holds the server's listening sockets, and starts the server again.

Started by `launch`.  Clients that come while there is no server wait in the sockets' queues.  Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from typing import Any

from .confinement import become, confine
from .handover import IPC, KEEPER, LAST, SERVER_MODULE, TCP, command, config, loading, remove

_LIVED_S = 1.0  # a server that lives shorter has failed at its start
_FAILURES = 10  # in a row, before it is left to the next command
_PAUSE_S = 0.2  # after a failure


def main() -> None:
    given = config()
    _let_go()
    confine(KEEPER)
    server = 0

    def end(*_: object) -> None:
        if server:
            os.kill(server, signal.SIGKILL)
        _release(given)
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    failures = 0
    while failures < _FAILURES:
        began = time.monotonic()
        server = os.posix_spawn(sys.executable, command(SERVER_MODULE, given["endpoint"]), loading())
        become(given)  # not before: perhaps only root can read this Python installation
        status = os.waitstatus_to_exitcode(os.waitpid(server, 0)[1])
        server = 0
        if status == 0:
            break
        if time.monotonic() - began < _LIVED_S:
            failures += 1
            time.sleep(_PAUSE_S)
        else:
            failures = 0
    _release(given)


def _let_go() -> None:
    """Of the command's folder and descriptors: the job's user may look into the processes that come after this one."""
    os.chdir("/")
    for number in map(int, os.listdir("/proc/self/fd")):
        if number > LAST:
            with contextlib.suppress(OSError):  # that of this look
                os.close(number)


def _release(given: dict[str, Any]) -> None:
    for descriptor in (IPC, TCP):
        with contextlib.suppress(OSError):  # it has no port, perhaps
            os.close(descriptor)
    remove(given["folder"])  # last of all: detach waits for it
