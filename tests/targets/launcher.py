"""Starts the ranks of a job, as torchrun does, but without torch, and does not mind if one of them ends.

usage: launcher.py RANKS SCRIPT [ARGUMENT …]
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
    count, *command = sys.argv[1:]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
    ranks = [
        subprocess.Popen([sys.executable, *command], env=os.environ | shared | {"RANK": rank, "LOCAL_RANK": rank})
        for rank in map(str, range(int(count)))
    ]
    for rank in ranks:
        rank.wait()
