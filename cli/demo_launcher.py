"""Starts the ranks of `probe demo`'s job, as torchrun does, but at once: torchrun imports torch for seconds first.

usage: demo_launcher.py RANKS SCRIPT     Run by the demo, in a session of its own.

Invariant: it imports neither probe nor torch, and no rank outlives it or another rank, nor does a loader's worker.
"""

import ctypes
import os
import signal
import socket
import subprocess
import sys

LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1  # prctl(2)


def main() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    count, script = sys.argv[1:]
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-u", script],
            env={**os.environ, **job, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            preexec_fn=lambda: LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
        )
        for rank in range(int(count))
    ]

    def end(*_: object) -> None:
        for rank in ranks:
            rank.kill()

    signal.signal(signal.SIGTERM, end)
    os.wait()
    end()
    for rank in ranks:
        rank.wait()
    os.killpg(os.getpid(), signal.SIGKILL)  # a worker looks every five seconds whether its rank is there


if __name__ == "__main__":
    main()
