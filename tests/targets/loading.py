"""A training that is fed by DataLoader workers, and says what its weights are: target of tests and benches.

    python loading.py TIMES_FILE [SLEEP]

It sleeps for so many seconds after a step; without, it trains as fast as it can.
Prints "at STEP DIGEST" every 100 steps; when each step ended goes to TIMES_FILE, 8-byte floats of time.perf_counter.
Two such trainings have the same weights at the same step.
"""

import hashlib
import os
import struct
import sys
import time

import fast_import  # noqa: F401
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

TELL = 100


class Data(Dataset):
    def __len__(self):
        return 1 << 40

    def __getitem__(self, index):
        picture = torch.Generator().manual_seed(index)
        return torch.randn(3, 16, 16, generator=picture), index % 10


def digest(model):
    whole = hashlib.sha256()
    for tensor in model.state_dict().values():
        whole.update(tensor.detach().numpy().tobytes())
    return whole.hexdigest()


def main(path, sleep):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten(),
        nn.Dropout(0.1), nn.Linear(32 * 12 * 12, 10),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters())
    with open(path, "ab", buffering=0) as times:
        for step, (pictures, kinds) in enumerate(DataLoader(Data(), batch_size=8, num_workers=2), 1):
            nn.functional.cross_entropy(model(pictures), kinds).backward()
            optimizer.step()
            optimizer.zero_grad()
            times.write(struct.pack("<d", time.perf_counter()))
            time.sleep(sleep)
            if step % TELL == 0:
                os.write(1, f"at {step} {digest(model)}\n".encode())


main(sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 0.0)
