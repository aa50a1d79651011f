"""More trainings for a device, started and told about as tests/played/jobs/training.py is: `device_job.py KIND STEPS`.

Those that are timed say after each step: step END_NS STEP_NS, on the monotonic clock.
"""

import ctypes
import itertools
import os
import statistics
import sys
import threading
import time
from pathlib import Path

TESTS = Path(__file__).parents[2]
sys.path[:0] = [str(TESTS / each) for each in ("played/jobs", "bench", "gpu", "targets")]

import fast_import  # noqa: E402, F401
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import training  # noqa: E402
from gpt2 import gpt2  # noqa: E402

LONG_S, BUSY_S = 12, 0.002
PLAYED = "PLAYED_WORLD" in os.environ  # a rehearsal on tests/played, which moves little and plays no cuDNN
MB = 1 << 10 if PLAYED else 1 << 20
torch.backends.cuda.enable_cudnn_sdp(not PLAYED)


def keep_busy(seconds):
    """A kernel that takes so long, on the current stream."""
    if PLAYED:
        ctypes.CDLL("libplayed.so").played_kernel(ctypes.c_int64(int(seconds * 1e9)))
    else:
        torch.cuda._sleep(int(seconds * 1.9e9))


def captures_under_load(device):
    """Each step trains with all its modules recorded, and captures a graph while their events are under way."""
    train, still = training.plain(device, training.layers(40).to(device)), training.layers().to(device)
    other, over = training.layers().to(torch.device("cpu")), threading.Event()
    threading.Thread(target=lambda: [other(torch.ones(8, training.WIDTH)) for _ in iter(over.is_set, True)]).start()
    numbers = itertools.count(1)

    def step():
        loss = train()
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            still(torch.ones(8, training.WIDTH, device=device))
            time.sleep(0.01)
        graph.replay()
        if next(numbers) == 60:
            over.set()
        return loss

    return step


def waits(device):
    """The main thread waits for a kernel that takes long, behind which is a collective."""
    train, numbers = training.plain(device), itertools.count(1)
    dist.all_reduce(torch.ones(1, device=device))  # the first one waits for the device

    def step():
        number, loss = next(numbers), train()
        keep_busy(LONG_S)
        dist.all_reduce(torch.ones(1, device=device))
        training.say(f"waiting {number}")
        torch.cuda.synchronize()
        training.say(f"over {number}")
        return loss

    return step


def stuck(device):
    """Quick steps, until the file STUCK_AT is there: then a kernel that takes 60 s stands in front of a collective."""
    train, tensor = training.plain(device), torch.ones(1, device=device)

    def step():
        loss = train()
        if os.path.exists(os.environ["STUCK_AT"]):
            keep_busy(60)
            training.say("stuck")
        dist.all_reduce(tensor)
        torch.cuda.synchronize()
        return loss

    return step


def durations(device):
    """Gathers of 256 MB synchronous, 128 MB waited for at once, 64 MB waited for behind as long a computation; says at
    the end what own events around them have told: own BYTES MEDIAN_MS."""
    own, made, train = {}, [], training.plain(device)

    def gathered(size, issue):
        given = torch.ones(size * MB // 4, device=device)
        taken = torch.empty(dist.get_world_size() * given.numel(), device=device)
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        keep_busy(BUSY_S)  # so that the device never waits for the host
        first.record()
        issue(taken, given)
        last.record()
        made.append((given.nbytes, first, last))

    def behind(taken, given):
        work = dist.all_gather_into_tensor(taken, given, async_op=True)
        given.new_ones(given.shape).square_().square_().square_().square_()
        work.wait()

    def step():
        loss = train()
        gathered(256, dist.all_gather_into_tensor)
        gathered(128, lambda taken, given: dist.all_gather_into_tensor(taken, given, async_op=True).wait())
        gathered(64, behind)
        torch.cuda.synchronize()
        for size, first, last in made:
            own.setdefault(size, []).append(first.elapsed_time(last))
        made.clear()
        if len(own[64 * MB]) == 60:
            for size, each in own.items():
                training.say(f"own {size} {statistics.median(each[20:])}")
        return loss

    return step


def timed(step):
    def timed_step():
        start = time.monotonic_ns()
        loss = step()
        torch.cuda.synchronize()
        end = time.monotonic_ns()
        training.say(f"step {end} {end - start}")
        return torch.zeros(()) if loss is None else loss

    return timed_step


def gpt2_large_batch(device):
    return timed(gpt2(device)[1])


def gpt2_one_sequence(device):
    return timed(gpt2(device, batch=1, length=128)[1])


def hundred_collectives(device):
    tensor, train = torch.ones(1024, device=device), training.plain(device, training.layers(1).to(device))

    def step():
        for _ in range(100):
            dist.all_reduce(tensor)
        return train()

    return timed(step)


KINDS = (
    captures_under_load, waits, stuck, durations, gpt2_large_batch, gpt2_one_sequence, hundred_collectives,
)  # fmt: skip

if __name__ == "__main__":
    training.KINDS.update({each.__name__: each for each in KINDS})
    training.main()
