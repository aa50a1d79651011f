"""A training that pauses now and then, and in the end stands: target of tests of what is said meanwhile.

    python pausing.py PAUSE_S [STEPS]

It trains on a thread that is not the main one.  After every 20 steps it validates for PAUSE_S, in a function of its
own; after STEPS steps it waits for ever.  Prints "pauses" when a validation begins, and "stands" in the end.
"""

import itertools
import sys
import threading
import time

import torch
from torch import nn

PERIOD = 20


def validate(model, pause_s):
    print("pauses", flush=True)
    end = time.monotonic() + pause_s
    with torch.no_grad():
        while time.monotonic() < end:
            model(torch.randn(4, 8))
            time.sleep(0.01)


def train(pause_s, steps):
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
            validate(model, pause_s)


if __name__ == "__main__":
    thread = threading.Thread(target=train, args=(float(sys.argv[1]), int([*sys.argv, "0"][2])))
    thread.start()
    thread.join()
