"""Keeps cores busy beside a job, as another user's programs: `burning.py COUNT`; they end when the job ends."""

import os
import sys


def burn(job):
    """Until the job is gone."""
    while os.path.exists(f"/proc/{job}"):
        for _ in range(1000):
            sum(range(1000))


if __name__ == "__main__":
    parent = os.getppid()
    for _ in range(int(sys.argv[1])):
        if os.fork() == 0:
            os.setsid()  # where the kernel shares cores out among sessions, each of them is one
            burn(parent)
            os._exit(0)
