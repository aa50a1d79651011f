"""The job of `probe demo`: two ranks train a small model on noise over gloo.  Invariant: it does not import probe."""

import gc
import itertools
import time

gc.disable()  # an import makes what stays: torch's takes a quarter less time without collecting garbage
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402


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
    for step in itertools.count():
        inputs, targets = torch.randn(32, 64), torch.randint(0, 10, (32,))
        loss = nn.functional.cross_entropy(ddp(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        if step == 0:
            gc.enable()  # the first step imports, too
            print("ready", flush=True)
        time.sleep(0.01)  # the machine has other things to do


if __name__ == "__main__":
    main()
