"""What every job of the zoo does: it is one process or a rank, says that it trains, and ends with its parent."""

import ctypes
import itertools
import os
import subprocess
import sys
from pathlib import Path

ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL: before the imports, which take seconds
HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))

import fast_import  # noqa: E402, F401
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402


def run(jobs):
    """The job that the first argument names, with one thread for its arithmetic."""
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    torch.manual_seed(int(os.environ.get("RANK", 0)))
    jobs[sys.argv[1]]()


def ready():
    """The line that a job prints: it begins to train now, or to do what it is in the zoo for."""
    print(f"ready {os.getpid()}", flush=True)


def helper(script, *words, **options):
    """Starts another script of this folder beside the job; it ends with the job."""
    command = [sys.executable, str(HERE / script), *map(str, words)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, **options)


def random_batches(model, size):
    """Endless, and cheap: the same few batches again and again."""
    return itertools.cycle([model.batch(size) for _ in range(4)])


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=1e-3)


def train(model, batches, optimizer, after_step=None):
    """A plain loop; after_step(step) is called between two steps."""
    ready()
    for step, (inputs, targets) in enumerate(batches):
        loss = model.loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if after_step:
            after_step(step)
