"""Starts two ranks of a job, as torchrun does, but does not mind if one of them ends.

usage: launcher.py SCRIPT [ARGUMENT …]
"""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys

if __name__ == "__main__":
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    command = [sys.executable, *sys.argv[1:]]
    ranks = [subprocess.Popen(command, env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in (0, 1)]
    for rank in ranks:
        rank.wait()
