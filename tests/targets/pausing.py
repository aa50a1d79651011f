"""A training that pauses now and then, and in the end stands: target of tests of what is said meanwhile.

    python pausing.py PAUSE_S [STEPS] [validate|compile|save]

It trains on a thread that is not the main one.  After every 20 steps it validates for PAUSE_S, or compiles, or writes,
in a function of its own; after STEPS steps it waits for ever.  Prints "pauses" when a pause begins, and "stands" in the
end.
"""

import itertools
import os
import sys
import tempfile
import threading
import time

import fast_import  # noqa: F401
import torch
from torch import nn

PERIOD = 20


def validate(model, pause_s):
    end = time.monotonic() + pause_s
    with torch.no_grad():
        while time.monotonic() < end:
            model(torch.randn(4, 8))
            time.sleep(0.01)


def compile(model, pause_s):
    def slowly(graph, inputs):
        end = time.monotonic() + pause_s
        while time.monotonic() < end:
            sum(range(1000))
        return graph.forward

    torch._dynamo.reset()
    torch.compile(lambda x: x.sin().sum(), backend=slowly)(torch.ones(4))


def save(model, pause_s):
    end = time.monotonic() + pause_s
    while time.monotonic() < end:
        with tempfile.TemporaryFile() as file:
            torch.save({"weights": model.state_dict(), "rest": torch.zeros(1 << 20)}, file)
            os.fsync(file.fileno())


def train(pause_s, steps, pause):
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in itertools.count(1):
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.02)
        if step == steps:
            print("stands", flush=True)
            threading.Event().wait()
        if step % PERIOD == 0:
            print("pauses", flush=True)
            pause(model, pause_s)


if __name__ == "__main__":
    pause_s, steps, kind, *_ = [*sys.argv[1:], *("", "0", "validate")[len(sys.argv) - 1 :]]
    thread = threading.Thread(target=train, args=(float(pause_s), int(steps), globals()[kind]))
    thread.start()
    thread.join()
