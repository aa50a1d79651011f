"""What ranks that hang wait for below Python: is it named, each time?  And is a job that goes on ever stopped?

    python tests/bench/native_frames.py [--rounds 10] [--nccl]

Needs a C compiler and pystack.  --nccl: a job that waits for NCCL instead, on the played runtime; by the interpreter of
`make test-cuda`.  Ends with 1 if a function was not named or a job was stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "played"))

from forked import ForkServer
from hangs import QUIET_S, Job
from played import environment_of
from until import states

from target import PROBE, PYTHON, Start, starting

JOB = Path(__file__).resolve().parent.parent / "played" / "jobs" / "hanging.py"
LOCK = """#include <pthread.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
void take_the_lock(void) { pthread_mutex_lock(&lock); }
"""
# kind of hang -> the rank that is looked at, and the function that it is to be in
KINDS = {"sleeps": (0, "c10d::"), "in_c_lock": (1, "take_the_lock")}
NCCL = (0, "cudaDeviceSynchronize")
LOOKS = 2  # at each job that goes on


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--nccl", action="store_true")
    options = parser.parse_args()
    fork_server = ForkServer(PYTHON, env=environment_of(PYTHON)) if options.nccl else ForkServer(PYTHON)
    with contextlib.closing(fork_server):
        cases = [named_nccl] if options.nccl else [*(partial(named, kind=kind) for kind in KINDS), left_alone]
        good = [case(fork_server) for case in cases for _ in range(options.rounds)]
    print(f"{sum(good)} of {len(good)} right")
    return not all(good)


@contextlib.contextmanager
def place(fork_server: ForkServer) -> Iterator[tuple[Path, Start]]:
    with tempfile.TemporaryDirectory() as folder, starting(Path(folder), fork_server) as start:
        yield Path(folder), start


def named(fork_server: ForkServer, kind: str) -> bool:
    with place(fork_server) as (folder, start):
        library = folder / "locking.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-xc", "-", "-o", str(library)], input=LOCK, text=True, check=True)
        job = Job(start("hanging.py", kind, ready="", ranks=2, env={"LOCKING": str(library)}))
        job.wait_for("trains")
        job.probe("attach")
        job.hang()
        job.wait_for("hangs")
        time.sleep(QUIET_S)
        return judged(kind, job.pid, *KINDS[kind])


def named_nccl(fork_server: ForkServer) -> bool:
    with place(fork_server) as (folder, start):
        file = folder / "hang"
        played = {"PLAYED_WORLD": str(folder), "PLAYED_LOG": str(folder), "PLAYED_KERNEL_NS": "0"}
        job = start(JOB, "late", str(file), ranks=2, env={**environment_of(PYTHON), **played})
        subprocess.run([PROBE, "attach", str(job.pid)], check=True, capture_output=True)
        file.touch()
        job.wait_for("hangs", times=2)
        time.sleep(QUIET_S)
        return judged("nccl", job.pid, *NCCL)


def judged(kind: str, pid: int, rank: int, function: str) -> bool:
    """Whether the rank's frames have the function, and the verdict one of them."""
    stack = told(pid, "stack", "--native")
    below = stack.partition(f"rank {rank}, below Python:\n")[2].partition("\n\n")[0]
    report = json.loads(told(pid, "hang", "--native", "--json"))
    good = function in below and "below Python" in report["verdict"]
    print(f"{'ok' if good else 'WRONG':<6} {kind}: {report['verdict']}", flush=True)
    if not good:
        print(stack)
    return good


def told(pid: int, *words: str) -> str:
    command = [str(PROBE), str(pid), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120).stdout


def left_alone(fork_server: ForkServer) -> bool:
    """A job that goes on, whose threads' states are read as fast as it goes while it is looked at."""
    with place(fork_server) as (_, start):
        job = Job(start("hanging.py", "healthy_fast", ready="", ranks=2))
        job.wait_for("trains")
        job.probe("attach")
        seen: set[str] = set()
        over = threading.Event()

        def watch() -> None:
            while not over.is_set():
                for pid in job.ranks():
                    seen.update(states(pid))

        watcher = threading.Thread(target=watch)
        watcher.start()
        shown = [told(job.pid, *words) for words in (("stack", "--native"), ("hang", "--native")) for _ in range(LOOKS)]
        over.set()
        watcher.join()
    good = not seen & {"T", "t"} and not any("below Python" in each for each in shown)
    print(f"{'ok' if good else 'WRONG':<6} a job that goes on, whose threads were {sorted(seen)}", flush=True)
    return good


if __name__ == "__main__":
    sys.exit(main())
