"""Jobs that wait for their data, and healthy ones that load about as much: `loading.py JOB`."""

import itertools
import random
import time

import torch
from families import CNN, GNN, GPT, MLP, Samples, UNet
from job import ready, run, sgd, train
from torch.utils.data import DataLoader

WORDS = ("that", "was", "for", "with", "his", "had", "not", "are", "but", "from", "have", "they", "which", "one", "you")
OPEN_S = 0.25  # what a worker needs to open its part of an archive


class Graphs(Samples):
    """Each graph is built when it is asked for."""

    def __getitem__(self, index):
        self.build_graph(index)
        return super().__getitem__(index)

    def build_graph(self, seed, nodes=200):
        places = random.Random(seed)
        points = [(places.random(), places.random()) for _ in range(nodes)]
        near = {node: [] for node in range(nodes)}
        for node, (x, y) in enumerate(points):
            for other, (left, top) in enumerate(points[node + 1 : node + 31], node + 1):
                if (x - left) ** 2 + (y - top) ** 2 < 0.1:
                    near[node].append(other)
        return near


class Stored(Samples):
    """Each sample comes from storage, which takes its time and no core."""

    def __init__(self, model, seconds, count=1024):
        super().__init__(model, count)
        self.seconds = seconds

    def __getitem__(self, index):
        self.read_file(index)
        return super().__getitem__(index)

    def read_file(self, index):
        time.sleep(self.seconds)


class Shards(Stored):
    """A whole batch in one file, so that workers have little to do."""

    def __getitem__(self, index):
        self.read_file(index)
        return self.batch(32)


class Tokenize:
    """A collate_fn that takes texts apart in Python."""

    def __init__(self, model, repeats):
        self.model, self.repeats = model, repeats

    def __call__(self, samples):
        for place in range(len(samples)):
            self.tokenize(" ".join(random.Random(place).choices(WORDS, k=100)))
        return self.model.batch(len(samples))

    def tokenize(self, text):
        for _ in range(self.repeats):
            pairs = {}
            for word in text.split():
                for pair in itertools.pairwise(word):
                    pairs[pair] = pairs.get(pair, 0) + 1
        return pairs


def epochs(model, train_loader, optimizer):
    """Epoch after epoch, as most people write it."""
    ready()
    while True:
        for inputs, targets in train_loader:
            loss = model.loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def adamw(model):
    return torch.optim.AdamW(model.parameters(), fused=True)


def input_bound_gnn():
    model = GNN()
    epochs(model, DataLoader(Graphs(model), batch_size=64), sgd(model))


def input_bound_cnn():
    model = CNN()
    epochs(model, DataLoader(Stored(model, 0.005), batch_size=16, shuffle=True), sgd(model))


def input_bound_gpt():
    model = GPT()
    loader = DataLoader(Samples(model, 512), batch_size=8, collate_fn=Tokenize(model, 60))
    epochs(model, loader, adamw(model))


def starved_workers_cnn():
    model = CNN()
    epochs(model, DataLoader(Stored(model, 0.006), batch_size=16, num_workers=1), sgd(model))


def starved_workers_unet():
    model = UNet()
    epochs(model, DataLoader(Stored(model, 0.016), batch_size=16, num_workers=2), sgd(model))


def open_archive(worker):
    time.sleep(OPEN_S)


def worker_respawn_mlp():
    model = MLP()
    data = Samples(model, 128 * 8)
    epochs(model, DataLoader(data, batch_size=128, num_workers=2, worker_init_fn=open_archive), sgd(model))


def worker_respawn_gpt():
    model = GPT()
    data = Samples(model, 8 * 8)
    loader = DataLoader(data, batch_size=8, shuffle=True, num_workers=2, worker_init_fn=open_archive)
    epochs(model, loader, adamw(model))


def healthy_workers_keep_up():
    model = CNN()
    epochs(model, DataLoader(Shards(model, 0.01, 1 << 20), batch_size=None, num_workers=2), sgd(model))


def healthy_little_data_time():
    """About 5 % of a step."""
    model = MLP(1024)
    epochs(model, DataLoader(Samples(model, 9_600), batch_size=96), sgd(model))


def healthy_persistent_workers():
    """Epochs of 200 batches, and workers that stay."""
    model = UNet()
    options = {"num_workers": 2, "worker_init_fn": open_archive, "persistent_workers": True}
    epochs(model, DataLoader(Shards(model, 0.005, 200), batch_size=None, **options), sgd(model))


def healthy_batch_sizes_vary():
    """A last batch that is smaller, and batches of sizes that differ."""
    model = GPT(length=32)
    sizes = random.Random(0).choices((6, 8, 10, 12), k=64)
    train(model, (model.batch(sizes[step % 64]) for step in range(1 << 40)), adamw(model))


if __name__ == "__main__":
    run(globals())
