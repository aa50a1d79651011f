"""Two ranks of which the second comes late to whatever the first waits for: target of tests.

Step n waits in the way KINDS[n % len(KINDS)]; AdamW counts the steps.
"""

import itertools
import time

import fast_import  # noqa: F401
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.nn.parallel import DistributedDataParallel

LATE = 0.06  # seconds, long beside what a slow machine adds
KINDS = ("reducer", "buffers", "at once", "later", "functional", "recv", "coalesced")


def wait(kind, data):
    if kind == "at once":
        dist.all_reduce(data)
    elif kind == "later":
        work = dist.all_reduce(data, async_op=True)
        if dist.get_rank() == 0:
            time.sleep(LATE / 2)
        work.wait()
    elif kind == "functional":
        functional.all_reduce(data, "sum", dist.group.WORLD).wait()
    elif kind == "recv":
        (dist.send if dist.get_rank() else dist.recv)(data, 1 - dist.get_rank())
    elif kind == "coalesced":
        with dist._coalescing_manager():
            for each in data:
                dist.all_reduce(each)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    plain = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16))
    model = DistributedDataParallel(plain)
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.randn(8, 16)
    for step in itertools.count():
        kind = KINDS[step % len(KINDS)]
        if kind == "buffers" and dist.get_rank() == 1:
            time.sleep(LATE)
        with torch.no_grad() if kind != "reducer" else torch.enable_grad():
            loss = (model if kind in ("reducer", "buffers") else plain)(data).square().mean()
        if kind != "buffers" and dist.get_rank() == 1:
            time.sleep(LATE)
        if kind == "reducer":
            loss.backward()
        wait(kind, data)
        optimizer.step()
        dist.barrier()  # the next one begins together
        if step == 1:
            print("ready", flush=True)


main()
