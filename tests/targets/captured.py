"""A training, alone or as a rank over gloo, that has profiled itself by hand: `captured.py FOLDER`.

rank0.hand.json is its own trace of three iterations, rank0.hand.txt what torch made of that, as JSON.  Once the file
FOLDER/end is there it ends and prints how many steps it made and a hash of its weights; STEPS ends it after so many.
While FOLDER/slow is there it takes its time, while FOLDER/stand is there no step ends, and while FOLDER/validate is
there it validates on batches of a loader, and says once when no profiler is on.  Once FOLDER/fork is there it forks a
child that ends with 3, or with 4 if it ends a profiler of its parent's.  With a third word it trains in a
thread, which is `joined`, or a `daemon` that still trains when Python ends.
"""

import hashlib
import json
import os
import sys
import threading
import time
from pathlib import Path

import fast_import  # noqa: F401
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader

FOLDER, STEPS = Path(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else 0


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 8)
        self.conv = nn.Conv1d(8, 8, 3, padding=1)
        self.attention = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.head = nn.Linear(8, 1)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.table(tokens)
        hidden = self.conv(hidden.transpose(1, 2)).transpose(1, 2)
        return self.head(self.attention(hidden))


def by_hand(rank: int, iterate: object) -> None:
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as hand:
        for _ in range(3):
            iterate()  # type: ignore[operator]
    hand.export_chrome_trace(str(FOLDER / f"rank{rank}.hand.json"))
    told = {each.key: (each.count, each.self_cpu_time_total, each.cpu_time_total) for each in hand.key_averages()}
    (FOLDER / f"rank{rank}.hand.txt").write_text(json.dumps(told))


def validate() -> None:
    told = False
    while (FOLDER / "validate").exists():
        for _ in DataLoader(range(10), generator=torch.Generator()):  # type: ignore[arg-type]
            time.sleep(0.01)
            if not told and not torch.autograd._profiler_enabled():
                told = not print(f"validates unprofiled {os.getpid()}", flush=True)


def fork() -> None:
    if (FOLDER / "fork").exists():
        (FOLDER / "fork").unlink()
        child = os.fork()
        if not child:
            profile.stop = lambda self: os._exit(4)  # type: ignore[method-assign]
            sys.exit(3)
        print(f"child ended {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}", flush=True)


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if dist.is_initialized() else 0
    net = Net()
    model = DistributedDataParallel(net) if dist.is_initialized() else net
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    tokens, end = torch.arange(20).reshape(2, 10) % 10, torch.zeros(1)

    def iterate() -> None:
        optimizer.zero_grad()
        model(tokens).square().mean().backward()
        optimizer.step()

    for _ in range(4):
        iterate()
    if not STEPS:
        by_hand(rank, iterate)
    steps = 4 if STEPS else 7
    if not STEPS:
        print(f"ready {os.getpid()}", flush=True)
    while not end.item():
        iterate()
        if not STEPS:
            time.sleep(0.3 if (FOLDER / "slow").exists() else 0.05)
            while (FOLDER / "stand").exists():
                time.sleep(0.01)
            validate()
            fork()
        steps += 1
        end.fill_(float(steps == STEPS or (not STEPS and (FOLDER / "end").exists())))
        if dist.is_initialized():
            dist.all_reduce(end)
    weights = b"".join(each.detach().numpy().tobytes() for each in net.parameters())
    print(f"final {steps} {hashlib.sha256(weights).hexdigest()}", flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


def in_thread(how: str) -> None:
    thread = threading.Thread(target=main, daemon=how == "daemon")
    thread.start()
    while how == "daemon" and not (FOLDER / "end").exists():
        time.sleep(0.01)
    if how == "joined":
        thread.join()


if __name__ == "__main__":
    in_thread(sys.argv[3]) if any(sys.argv[3:]) else main()
