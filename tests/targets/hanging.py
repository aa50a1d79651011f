"""One of two ranks of a small gloo job that goes on until it is told to hang, in the way that is asked for.

usage: launcher.py 2 hanging.py KIND     KIND: a name in KINDS; "healthy_…" never hangs
Prints "trains" after a first step.  After a SIGUSR2 to either rank both go on for STEPS, print "hangs" and do so.  It
ends by itself after five minutes, or with its launcher.  After SIGUSR1 it stops itself between two steps, with no
operation of its own in flight.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

import fast_import  # noqa: F401
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

LAST_S = 300
PAUSE_S = 120  # of healthy ones: a pause that has been there before is usual
STEPS = 20  # how many more, once told
KINDS = {}


def kind(function):
    KINDS[function.__name__] = function
    return function


class Data(Dataset):
    """Its workers stop, once asked for an item from which on they shall not go on."""

    def __init__(self, stuck_from=1 << 60):
        self.stuck_from = stuck_from

    def __len__(self):
        return 1 << 40

    def __getitem__(self, index):
        if index >= self.stuck_from:
            time.sleep(LAST_S)
        return torch.ones(16)


@kind
def sleeps(job):
    if job.rank == 1:
        time.sleep(LAST_S)


@kind
def in_lock(job):
    if job.rank == 1:
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()


@kind
def in_c_lock(job):
    """The lock of a C extension, whose file is in LOCKING."""
    if job.rank == 1:
        library = ctypes.CDLL(os.environ["LOCKING"])
        library.take_the_lock()
        library.take_the_lock()


@kind
def raised(job):
    if job.rank == 1:
        try:
            raise ValueError("a bad batch")
        except ValueError:
            threading.Event().wait(LAST_S)


@kind
def exited(job):
    if job.rank == 1:
        os._exit(0)
    time.sleep(LAST_S)  # gloo raises where a peer is gone; this one waits for something else


@kind
def stopped(job):
    if job.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)


@kind
def another_operation(job):
    if job.rank == 1:
        dist.broadcast(torch.ones(1 << 16), 0)
    else:
        dist.all_reduce(torch.ones(1 << 16))
    time.sleep(LAST_S)


@kind
def another_size(job):
    """gloo ends the process that gets more than it expects."""
    try:
        dist.all_reduce(torch.ones(1 << (16 + 4 * job.rank)))
    except RuntimeError:
        time.sleep(LAST_S)


@kind
def another_order(job):
    for group in job.groups if job.rank else job.groups[::-1]:
        dist.all_reduce(torch.ones(8), group=group)


@kind
def no_barrier(job):
    if job.rank == 0:
        dist.barrier()
    dist.all_gather([torch.ones(1 << 12), torch.ones(1 << 12)], torch.ones(1 << 12))


@kind
def no_send(job):
    """Stages of a pipeline, of which the first forgets to send."""
    if job.rank == 0:
        dist.recv(torch.ones(8), 1)
    time.sleep(LAST_S)


@kind
def both_receive(job):
    dist.recv(torch.ones(8), 1 - job.rank)


@kind
def loader(job):
    if job.rank == 1:
        next(iter(DataLoader(Data(0), num_workers=1)))


@kind
def python_loop(job):
    while job.rank == 1:
        pass


@kind
def c_loop(job):
    """Holds the GIL: PyDLL does not let go of it."""
    if job.rank == 1:
        ctypes.PyDLL(None).sleep(LAST_S)


@kind
def healthy_slow(job):
    """Each step takes a while, on one rank more than on the other."""
    while True:
        time.sleep(1.5 + job.rank)
        job.step()


@kind
def healthy_fast(job):
    while True:
        job.step()


@kind
def healthy_validates(job):
    while True:
        end = time.monotonic() + PAUSE_S * (job.rank == 1)
        with torch.no_grad():
            while time.monotonic() < end:
                job.model.module(torch.ones(64, 16))
        job.step()


@kind
def healthy_compiles(job):
    while True:
        if job.rank == 1:
            torch._dynamo.reset()
            torch.compile(lambda x: x.sin().sum(), backend=compile_slowly)(torch.ones(4))
        job.step()


@kind
def healthy_saves(job):
    """Reads and writes all the time, hardly computes, and is at one line at every look."""
    with open("/dev/zero", "rb") as source, open("/dev/null", "wb") as sink:
        while True:
            end = time.monotonic() + PAUSE_S * (job.rank == 1)
            while time.monotonic() < end and sink.write(source.read(1 << 20)) and not time.sleep(0.1): pass  # fmt: skip # noqa: E701
            job.step()


def compile_slowly(graph, inputs):
    end = time.monotonic() + PAUSE_S
    while time.monotonic() < end:
        sum(range(1000))
    return graph.forward


class Job:
    def __init__(self):
        dist.init_process_group("gloo")
        self.rank = dist.get_rank()
        self.groups = [dist.new_group([0, 1]), dist.new_group([0, 1])]
        self.model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.shall_stop = self.shall_hang = False
        signal.signal(signal.SIGUSR1, self.stop_soon)
        signal.signal(signal.SIGUSR2, self.hang_soon)

    def stop_soon(self, number, frame):
        self.shall_stop = True

    def hang_soon(self, number, frame):
        self.shall_hang = True

    def both_shall_hang(self):
        """Whether either rank was told so: both learn it after the same step."""
        told = torch.tensor(self.shall_hang, dtype=torch.int32)
        dist.all_reduce(told)
        return bool(told)

    def step(self):
        self.model(torch.ones(4, 16)).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        time.sleep(0.02)
        if self.shall_stop:
            os.kill(os.getpid(), signal.SIGSTOP)


def main(name):
    torch.set_num_threads(1)
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL: no rank outlives its launcher
    threading.Timer(LAST_S, os._exit, (0,)).start()
    job = Job()
    job.step()
    os.write(1, b"trains\n")  # at once and whole: two ranks share the pipe
    while not job.both_shall_hang():
        job.step()
    for _ in range(STEPS):
        job.step()
    os.write(1, b"hangs\n")
    KINDS[name](job)
    while True:
        job.step()


if __name__ == "__main__":
    main(sys.argv[1])
