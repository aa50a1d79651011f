"""Two ranks over gloo, of which one comes to the barrier once the file GO is there: `barrier.py GO`, by torchrun.

Prints "waits PID" before and "passed" after it.
"""

import os
import sys
import time

import fast_import  # noqa: F401
import torch.distributed as dist

dist.init_process_group("gloo")
if dist.get_rank() == 0:
    os.write(1, b"waits %d\n" % os.getpid())
while dist.get_rank() == 1 and not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
dist.barrier()
os.write(1, b"passed\n")
dist.destroy_process_group()
