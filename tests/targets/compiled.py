"""A compiled model in training: `compiled.py wrapped|builtin [--sleep SECONDS]`.

Prints "ready" when all is compiled, and at its end "counted", what dynamo counted, and the hash of the weights.
"""

import hashlib
import sys
import time

import fast_import  # noqa: F401
import torch
from torch import nn
from torch._dynamo.utils import counters

STEPS = 120


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    sleep = float(sys.argv[sys.argv.index("--sleep") + 1]) if "--sleep" in sys.argv else 0.0
    # dynamo compiles the call of a module of torch's own together with its wrapper: no call of it is seen
    net = Net() if sys.argv[1] == "wrapped" else nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    model = torch.compile(net, backend="eager")
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    step = torch.compile(optimizer.step, backend="eager")
    for number in range(STEPS):
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(number))
        model(x).pow(2).mean().backward()
        step()
        optimizer.zero_grad()
        if number == 5:
            print("ready", flush=True)
        time.sleep(sleep if number > 5 else 0.0)
    weights = hashlib.sha256(b"".join(weight.detach().numpy().tobytes() for weight in net.parameters())).hexdigest()
    print(
        "counted", dict(counters["frames"]), dict(counters["stats"]), dict(counters["graph_break"]), weights, flush=True
    )


if __name__ == "__main__":
    main()
