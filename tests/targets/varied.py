"""A job of which every query of the cookbook has something to tell: target of tests, run by torchrun.

    torchrun --nproc-per-node 2 varied.py

A small transformer under DDP, of which block h.2 is several times the work of the others; two batches a step (gradient
accumulation) and two optimizers.  Rank 1 has no loader worker, so it is the one the others wait for.
Every 16th step writes a checkpoint, for which all ranks stand; losses are kept, with a little too much of each.
"""

import contextlib
import itertools
import time

import fast_import  # noqa: F401
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

WORDS, LENGTH, WIDTH, BATCH = 256, 32, 32, 8
READ_S = 0.008  # an example
WORKERS = {0: 1, 1: 0}  # by rank
CHECKPOINT_EVERY, CHECKPOINT_TAKES = 16, 3  # steps
MICRO_STEPS = 2


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(x).view(BATCH, LENGTH, 3, 4, WIDTH // 4).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(out.transpose(1, 2).reshape(x.shape))


class Block(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = nn.LayerNorm(WIDTH), Attention(), nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, inner), nn.GELU(), nn.Linear(inner, WIDTH))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(WORDS, WIDTH)
        self.h = nn.ModuleList(Block(WIDTH * (64 if number == 2 else 4)) for number in range(4))
        self.ln_f, self.lm_head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids):
        x = self.wte(ids)
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


class Tokens:
    def __len__(self):
        return 10_000_000

    def __getitem__(self, index):
        time.sleep(READ_S)
        ids = torch.randint(0, WORDS, (LENGTH + 1,))
        return ids[:-1], ids[1:]


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    model = GPT()
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.25)
    rest = [parameter for name, parameter in model.named_parameters() if not name.startswith("wte")]
    optimizers = [torch.optim.AdamW(rest), torch.optim.SGD(model.wte.parameters(), lr=0.1)]
    train_loader = DataLoader(Tokens(), batch_size=BATCH, num_workers=WORKERS[dist.get_rank()])
    batches, kept = iter(train_loader), []
    for step in itertools.count():
        began = time.monotonic()
        for micro_step in range(MICRO_STEPS):
            ids, targets = next(batches)
            with ddp.no_sync() if micro_step < MICRO_STEPS - 1 else contextlib.nullcontext():
                loss = F.cross_entropy(ddp(ids).flatten(0, 1), targets.flatten())
                loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        model.zero_grad()
        kept.append((loss.detach(), torch.ones(1 << 16)))  # a quarter of a megabyte, for good
        dist.all_reduce(kept[-1][0])
        if step % CHECKPOINT_EVERY == CHECKPOINT_EVERY - 1:
            time.sleep(CHECKPOINT_TAKES * (time.monotonic() - began))
        if step == 2:
            print("ready", flush=True)


main()
