"""A training loop on a played CUDA device, whose kernels take known times; says `ready` after a step.

A root of 1 ms forward and 2 ms backward holds leaves of 3 and 4, 5 and 6 ms.  Each step begins with 20 ms of work of
no module's, so that the device is behind and never waits for the host.  A rank has an all_reduce in each step.

usage: on_cuda.py [later]
later: CUDA comes into use with SIGUSR1.
"""

import itertools
import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import fast_import  # noqa: F401
import torch
import torch.distributed as dist
from naps import MS, RealClock
from played_cuda import Kernels, played_cuda, to_cuda


def main() -> None:
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    with played_cuda(RealClock()) as played:
        played.initialized = "later" not in sys.argv
        signal.signal(signal.SIGUSR1, lambda number, frame: setattr(played, "initialized", True))
        model = to_cuda(Kernels(played, 1, 2, Kernels(played, 3, 4), Kernels(played, 5, 6)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for step in itertools.count():
            played.launch(model, "before", 20 * MS)
            model(torch.ones(1)).sum().backward()
            if dist.is_initialized():
                dist.all_reduce(torch.ones(1))
            optimizer.step()
            played.allocated = 100 << 20
            while played.clock() < played.busy_until:  # as reading the loss would
                time.sleep(0.001)
            if step == 0:
                print(f"ready {os.getpid()} rank={os.environ.get('RANK', 0)}", flush=True)


if __name__ == "__main__":
    main()
