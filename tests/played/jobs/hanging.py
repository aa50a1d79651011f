"""Two ranks over NCCL that hang on the played runtime once they are told to: `hanging.py KIND FILE`; target of tests.

Both hang after the same step, the first one that begins when FILE is there.  Says `ready` after the third step.  With
NCCL_RAS_ADDR, rank 0 plays NCCL's RAS, which says what is in FILE.ras.
"""

import ctypes
import itertools
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "targets"))

import fast_import  # noqa: F401
import ras
import torch
import torch.distributed as dist
from training import WIDTH, plain, say

FOREVER = ctypes.c_int64(-1)


def late(rank, numbers):
    if rank == 1:
        time.sleep(600)
    dist.all_reduce(numbers)


def kernel(rank, numbers):
    """Rank 1's device does not come to the operation that both have issued."""
    if rank == 1:
        ctypes.CDLL("libplayed.so").played_kernel(FOREVER)
    dist.all_reduce(numbers)


def mismatch(rank, numbers):
    dist.all_reduce(numbers[: WIDTH // (1 + rank)])


def dead(rank, numbers):
    if rank == 1:
        os._exit(0)
    dist.all_reduce(numbers)


def capture(rank, numbers):
    """Rank 1 captures a graph, and stands inside the capture."""
    if rank == 1:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            time.sleep(600)
    dist.all_reduce(numbers)


def watchdog(rank, numbers):
    """Rank 1 is late for so long that torch ends rank 0, which waits for it."""
    late(rank, numbers)


KINDS = {each.__name__: each for each in (late, kernel, mismatch, dead, capture, watchdog)}


def main():
    kind, file = sys.argv[1:]
    rank = int(os.environ["RANK"])
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    if rank == 0 and "NCCL_RAS_ADDR" in os.environ:
        ras.serve(f"{file}.ras")
    dist.init_process_group("nccl", timeout=timedelta(seconds=8) if kind == "watchdog" else None)
    step, numbers = plain(device), torch.ones(WIDTH, device=device)
    store = dist.distributed_c10d._get_default_store()
    for number in itertools.count(1):
        step()
        dist.all_reduce(numbers)
        torch.cuda.synchronize()
        time.sleep(0.02)
        if number == 3:
            say(f"ready {os.getpid()}")
        if rank == 0:
            store.set(f"after {number}", "hang" if os.path.exists(file) else "on")
        if store.get(f"after {number}") == b"hang":
            break
    say("hangs")
    KINDS[kind](rank, numbers)
    torch.cuda.synchronize()
    say("over")


if __name__ == "__main__":
    main()
