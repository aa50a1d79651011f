"""Two ranks that end with an all-reduce in flight, for which nobody waits and rank 1 comes a second late.

An autograd graph that is never freed holds its tensor: if gloo's thread drops the last reference of C++ while Python
ends, torch wants the GIL to tell the tensor's Python object and aborts the process, with an agent or without
(pytorch/pytorch#179291).

usage: unwaited.py RANK FILE AGENT     FILE: a new one, where the ranks meet; AGENT: 1 for probe.start()
Prints the names of the threads that there are when exit handlers run.
"""

from __future__ import annotations

import atexit
import ctypes
import sys
import time
from pathlib import Path

RANK, FILE, AGENT = int(sys.argv[1]), sys.argv[2], sys.argv[3] == "1"


@atexit.register
def threads() -> None:
    """Registered first, so it runs last."""
    names = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    print(*sorted(names), sep=",", flush=True)


import fast_import  # noqa: E402, F401
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

STEPS = 100  # more than a second of them: by then collectives are recorded

dist.init_process_group("gloo", init_method=f"file://{FILE}", rank=RANK, world_size=2)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if AGENT:
    import probe

    probe.start()
for _ in range(STEPS):
    model(torch.ones(2, 4)).sum().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.02)
if RANK == 1:
    time.sleep(1.0)
tensor = torch.ones(100)
ctypes.pythonapi.Py_IncRef(ctypes.py_object(torch.ones(100, requires_grad=True) * tensor))
dist.all_reduce(tensor, async_op=True)
