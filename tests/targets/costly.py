"""A training whose modules cost what can be computed by hand: a product of matrices, one of a vector, a convolution,
attention, a table, a norm."""

import os
import time

import fast_import  # noqa: F401
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(2, 4, 32, 16))

    def forward(self, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(self.query, keys, values)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.dense = nn.LayerNorm(256), nn.Linear(256, 256)
        self.thin = nn.Linear(512, 512)
        self.conv = nn.Conv2d(4, 8, 3, stride=2, padding=1)
        self.attention = Attention()
        self.table = nn.Embedding(1000, 64)

    def forward(self) -> torch.Tensor:
        found = [self.dense(self.norm(torch.randn(256, 256))), self.thin(torch.randn(1, 512))]
        found += [self.conv(torch.randn(2, 4, 16, 16)), self.attention(*torch.randn(2, 2, 4, 32, 16))]
        found += [self.table(torch.randint(0, 1000, (128,)))]
        return sum(each.square().mean() for each in found)


def main() -> None:
    torch.set_num_threads(1)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, foreach=False)
    for step in range(1_000_000):
        optimizer.zero_grad()
        net().backward()
        optimizer.step()
        if step == 3:
            print(f"ready {os.getpid()}", flush=True)
        time.sleep(0.01)


if __name__ == "__main__":
    main()
