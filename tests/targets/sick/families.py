"""The models of the zoo and what they are fed: random numbers, and a step of 20 to 120 ms on one core.

Each model has `batch(count)`, inputs and targets, and `loss(output, targets)`.
"""

import math
import random
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import Dataset

CLASSES = 10


class Classifier(nn.Module):
    def loss(self, output, targets):
        return F.cross_entropy(output, targets)


class MLP(Classifier):
    def __init__(self, width=640, depth=4):
        super().__init__()
        layers = [each for _ in range(depth) for each in (nn.Linear(width, width), nn.ReLU())]
        self.width, self.layers, self.head = width, nn.Sequential(*layers), nn.Linear(width, CLASSES)

    def batch(self, count):
        return torch.randn(count, self.width), torch.randint(CLASSES, (count,))

    def forward(self, x):
        return self.head(self.layers(x))


class CNN(Classifier):
    def __init__(self, width=24, size=32):
        super().__init__()
        self.size = size
        self.stem, self.body = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.norm, self.head = nn.BatchNorm2d(2 * width), nn.Linear(2 * width, CLASSES)

    def batch(self, count):
        return torch.randn(count, 3, self.size, self.size), torch.randint(CLASSES, (count,))

    def forward(self, x):
        return self.head(self.norm(F.relu(self.body(F.relu(self.stem(x))))).mean((2, 3)))


class Block(nn.Module):
    def __init__(self, width, heads=4):
        super().__init__()
        self.heads, self.norm, self.norm_2 = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm_2(x))


class GPT(nn.Module):
    VOCABULARY = 256

    def __init__(self, width=96, depth=3, length=48):
        super().__init__()
        self.length, self.words = length, nn.Embedding(self.VOCABULARY, width)
        self.places = nn.Embedding(4096, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.checkpointing, self.head = False, nn.Linear(width, self.VOCABULARY)

    def batch(self, count, length=None):
        words = torch.randint(self.VOCABULARY, (count, (length or self.length) + 1))
        return words[:, :-1], words[:, 1:]

    def forward(self, words):
        x = self.words(words) + self.places(torch.arange(words.shape[1]))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointing else block(x)
        return self.head(x)

    def loss(self, output, targets):
        return F.cross_entropy(output.flatten(0, 1), targets.flatten())


class Messages(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.send, self.keep = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x, source, target):
        received = torch.zeros_like(x).index_add_(1, target, self.send(x)[:, source])
        return F.relu(self.keep(x) + received)


class GNN(Classifier):
    def __init__(self, width=32, depth=3, nodes=200, edges=800):
        super().__init__()
        self.width, self.nodes = width, nodes
        self.register_buffer("edges", torch.randint(nodes, (2, edges)))
        self.layers = nn.ModuleList(Messages(width) for _ in range(depth))
        self.head = nn.Linear(width, CLASSES)

    def batch(self, count):
        return torch.randn(count, self.nodes, self.width), torch.randint(CLASSES, (count,))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x, *self.edges)
        return self.head(x.mean(1))


class Scan(Classifier):
    """A cell that runs once for each element of a sequence, in a Python loop."""

    def __init__(self, width=48, length=100, cell=nn.GRUCell):
        super().__init__()
        self.width, self.length = width, length
        self.cell, self.head = cell(width, width), nn.Linear(width, CLASSES)

    def batch(self, count):
        return torch.randn(count, self.length, self.width), torch.randint(CLASSES, (count,))

    def forward(self, x):
        state = None
        for each in x.unbind(1):
            state = self.cell(each, state)
        return self.head(state[0] if isinstance(state, tuple) else state)


class UNet(nn.Module):
    def __init__(self, width=12, size=32):
        super().__init__()
        self.size = size
        self.down, self.deep = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.bottom = nn.Conv2d(2 * width, 2 * width, 3, padding=1)
        self.up, self.out = nn.ConvTranspose2d(2 * width, width, 2, stride=2), nn.Conv2d(2 * width, 3, 3, padding=1)

    def batch(self, count):
        pictures = torch.randn(count, 3, self.size, self.size)
        return pictures, pictures

    def forward(self, x):
        skip = F.relu(self.down(x))
        deep = F.relu(self.bottom(F.relu(self.deep(skip))))
        return self.out(torch.cat((self.up(deep), skip), 1))

    def loss(self, output, targets):
        return F.mse_loss(output, targets)


def gan(noise=64, picture=768):
    """A generator, and a discriminator that is smaller."""

    def stack(first, width, depth, last):
        hidden = [each for _ in range(depth) for each in (nn.Linear(width, width), nn.LeakyReLU(0.2))]
        return nn.Sequential(nn.Linear(first, width), nn.LeakyReLU(0.2), *hidden, nn.Linear(width, last))

    return stack(noise, 512, 3, picture), stack(picture, 128, 1, 1)


class Policy(nn.Module):
    def __init__(self, width=512):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width))
        self.head = nn.Linear(width, 2)

    def forward(self, observed):
        return self.head(torch.tanh(self.body(observed)))


class Poles:
    """Many poles on carts, each simulated in Python in so many substeps."""

    def __init__(self, count, substeps):
        self.substeps, self.states = substeps, [[random.uniform(-0.05, 0.05) for _ in range(4)] for _ in range(count)]

    def step(self, actions):
        for place, action in enumerate(actions):
            self.states[place] = self.simulate(self.states[place], 1.0 if action else -1.0)
        return torch.tensor(self.states), torch.tensor([1.0 - abs(state[2]) for state in self.states])

    def simulate(self, state, force):
        x, speed, angle, turn = state
        for _ in range(self.substeps):
            push = (force + 0.05 * turn * turn * math.sin(angle)) / 1.1
            bend = (9.8 * math.sin(angle) - math.cos(angle) * push) / (0.5 * (4 / 3 - 0.1 * math.cos(angle) ** 2 / 1.1))
            x, speed, angle, turn = x + 0.001 * speed, speed + 0.001 * push, angle + 0.001 * turn, turn + 0.001 * bend
        return [0.0] * 4 if abs(angle) > 0.5 else [x, speed, angle, turn]


class Device(torch.autograd.Function):
    """What a device would take, so that several ranks do not share the cores of a small machine."""

    @staticmethod
    def forward(ctx, x, seconds):
        ctx.seconds = seconds
        time.sleep(seconds)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.seconds)
        return gradient, None


class OnDevice(MLP):
    """As on a device: each pass takes so many seconds, in which the host has nothing to do, in equal parts a layer."""

    def __init__(self, seconds, width=64, depth=2):
        super().__init__(width, depth)
        self.seconds = seconds / len(self.layers)

    def forward(self, x):
        for layer in self.layers:
            x = Device.apply(layer(x), self.seconds)
        return self.head(x)


class Samples(Dataset):
    """What a model is fed, one by one; the subclasses in loading.py take longer for it."""

    def __init__(self, model, count=1024):
        self.batch, self.count = model.batch, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        inputs, targets = self.batch(1)
        return inputs[0], targets[0]


class Batches(Dataset):
    """The same few batches again and again, for loaders with batch_size=None."""

    def __init__(self, model, size, count=1 << 20):
        self.few, self.count = [model.batch(size) for _ in range(4)], count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.few[index % len(self.few)]


class WithTable(nn.Module):
    """A model with a table of so many million numbers that it does not train."""

    def __init__(self, model, millions):
        super().__init__()
        self.model, self.batch, self.loss = model, model.batch, model.loss
        self.register_buffer("table", torch.zeros(millions, 1_000_000))

    def forward(self, x):
        return self.model(x)
