"""Starts the ranks of a job, as torchrun does, but without torch, and does not mind if one of them ends: its exit
status tells that one has failed.

usage: launcher.py RANKS SCRIPT [ARGUMENT …]
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import subprocess
import sys

FIRST_PORT = 10_000
STARTED = "RANKS_ARE_STARTED"  # in the environment of a launcher that has its ranks already


def environments(count):
    """What the environment of each rank has in addition."""
    port = str(free_port(os.getpid()))
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    return [shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]


def free_port(number):
    """One that nobody is given who asks for any, for a rank listens there only later; other numbers have others."""
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
        count = int(file.read().split()[0]) - FIRST_PORT
    below = (FIRST_PORT + each % count for each in range(number, number + count))
    for port in (*below, 0):
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("127.0.0.1", port))
            return free.getsockname()[1]
    raise OSError("no port is free")


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
    if STARTED not in os.environ:
        for environment in environments(int(sys.argv[1])):
            subprocess.Popen([sys.executable, *sys.argv[2:]], env=os.environ | environment)
    statuses = []
    with contextlib.suppress(ChildProcessError):
        while True:
            statuses.append(os.wait()[1])
    sys.exit(any(statuses))
