"""The job of `probe demo`: two ranks train a small model on noise over gloo.  Its loader is slow, as `probe why` finds.

Invariant: it does not import probe.
"""

import gc
import itertools
import time

gc.disable()  # an import makes what stays: torch's takes a quarter less time without collecting garbage
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402

EPOCH, BATCH = 100, 32  # steps, samples
READ_S = 0.0006  # for each sample


class Noise(Dataset[tuple[torch.Tensor, int]]):
    def __len__(self) -> int:
        return EPOCH * BATCH

    def read(self, index: int) -> torch.Tensor:
        time.sleep(READ_S)  # as a file on a slow disk would take
        return torch.randn(64)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.read(index), index % 10


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.mlp(self.norm(x))
        return out


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    model = nn.Sequential(nn.Linear(64, 128), Block(128), Block(128), nn.Linear(128, 10))
    learning_rate = 1e-3
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=learning_rate)
    train_loader = DataLoader(Noise(), BATCH)
    for _ in itertools.count():
        for inputs, targets in train_loader:
            loss = nn.functional.cross_entropy(ddp(inputs), targets)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()
            if not gc.isenabled():
                gc.enable()  # the first step imports, too
                print("ready", flush=True)
            time.sleep(0.005)  # the machine has other things to do


if __name__ == "__main__":
    main()
