"""Trainings over NCCL on the played runtime: target of tests.

`training.py KIND STEPS [--sleep SECONDS] [--until FILE]`: it makes so many steps, or goes on until FILE is there.
Says `ready` after the third step and `made STEPS` after so many, and at the end one line: final RANK LOSSES PEAK, a
hash of the losses of the first STEPS and the peak of device memory in bytes; before it, with PLAYED_COUNT=1, how many
steps it made and its calls into the runtime: counts STEPS JSON.  With --late RANK kernels take four times as long on
the device of that rank.  With --hand FOLDER each rank first profiles three steps by hand: rankN.hand.json has their
trace, rankN.hand.txt what torch makes of it.  RANK and WORLD_SIZE are the launcher's, alone it is a world of one.
"""

import argparse
import ctypes
import hashlib
import itertools
import json
import os
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "targets"))

import fast_import  # noqa: F401
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

EXTRA = 3  # steps without a loss that is kept: those of a job that goes on are no other
WIDTH, ACTIVATION = 64, 1 << 17  # numbers


def layers(count=4):
    return nn.Sequential(*[part for _ in range(count) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU())])


def plain(device, model=None):
    """A step of a model on this device."""
    model = layers().to(device) if model is None else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def step():
        loss = model(torch.randn(8, WIDTH).to(device)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def ddp(device):
    return plain(device, DistributedDataParallel(layers().to(device), device_ids=[device.index], bucket_cap_mb=0.02))


def fsdp2(device):
    from torch.distributed.fsdp import fully_shard

    model = layers().to(device)
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    return plain(device, fully_shard(model))


def tensor_parallel(device):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel(), "4": ColwiseParallel(), "6": RowwiseParallel()}
    return plain(device, parallelize_module(layers().to(device), mesh, plan))


def pipeline(device):
    """Activations go to the next rank and gradients back, in batches of sends and receives."""
    model = layers().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    after = (dist.get_rank() + 1) % dist.get_world_size()
    before = (dist.get_rank() - 1) % dist.get_world_size()

    def exchanged(tensor, to, source):
        received = torch.empty_like(tensor)
        sends = dist.P2POp(dist.isend, tensor, to), dist.P2POp(dist.irecv, received, source)
        for work in dist.batch_isend_irecv([*sends]):
            work.wait()
        return received

    def step():
        given = torch.randn(8, WIDTH).to(device)
        out = model(given)
        out.backward(exchanged(exchanged(out.detach(), after, before), before, after))
        optimizer.step()
        optimizer.zero_grad()
        return out.mean()

    return step


def operations(device):
    """A training with each way to issue a collective: synchronous, asynchronous, coalesced, functional."""
    from torch.distributed import _functional_collectives as functional

    train, group = plain(device), dist.group.WORLD

    def step():
        loss, tensor = train(), torch.ones(WIDTH, WIDTH, device=device)
        dist.all_reduce(tensor)
        dist.all_reduce(tensor, async_op=True).wait()
        with dist._coalescing_manager(group=group, device=device, async_ops=True) as coalesced:
            for _ in range(2):
                dist.all_reduce(tensor)
        coalesced.wait()
        for _ in range(20):  # as activations of tensor parallelism, gone when the next one comes
            dist.all_reduce(torch.zeros(ACTIVATION, device=device), async_op=True).wait()
        return loss + functional.wait_tensor(functional.all_reduce(tensor, "sum", group)).mean()

    return step


def captures(device):
    """Every tenth step is captured with a collective in it, and the graph replayed."""
    train, tensor, graphs = plain(device), torch.ones(WIDTH, device=device), []
    still, numbers = layers().to(device), itertools.count(1)

    def step():
        loss = train()
        if not next(numbers) % 10:
            torch.cuda.synchronize()
            under_way = dist.all_reduce(tensor, async_op=True)
            graphs.append(torch.cuda.CUDAGraph())
            with torch.cuda.graph(graphs[-1]):
                still(torch.ones(8, WIDTH, device=device)).sum().backward()
                dist.all_reduce(tensor, async_op=True).wait()
                time.sleep(0.02)
            under_way.wait()
        for graph in graphs[-1:]:
            graph.replay()
        return loss

    return step


def mixed(device):
    """Automatic mixed precision with a gradient scaler."""
    model, scaler = layers().to(device), torch.amp.GradScaler("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step():
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(torch.randn(8, WIDTH).to(device)).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss

    return step


def everything(device):
    """Captures, side streams, and a loader whose workers are forked for each epoch."""
    train, still, tensor = plain(device), layers().to(device), torch.ones(WIDTH, device=device)
    side, numbers, graphs = torch.cuda.Stream(), itertools.count(1), []

    def step():
        loss, number = train(), next(numbers)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            still(torch.ones(8, WIDTH, device=device)).sum().backward()
            dist.all_reduce(tensor, async_op=True).wait()
        torch.cuda.current_stream().wait_stream(side)
        if not number % 5:
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                still(torch.ones(8, WIDTH, device=device))
                dist.all_reduce(tensor)
            graphs[:] = [graph]
        if not number % 10:
            for _ in torch.utils.data.DataLoader(range(8), batch_size=4, num_workers=2):
                pass
        for graph in graphs:
            graph.replay()
        return loss

    return step


def capturable(device):
    """The whole step is one graph, with the optimizer in it."""
    model, given = layers().to(device), torch.randn(8, WIDTH).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, capturable=True)

    def train():
        optimizer.zero_grad(set_to_none=True)
        loss = model(given).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            train()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = train()

    def step():
        graph.replay()
        return loss.detach().clone()

    return step


def reduce_overhead(device):
    """torch.compile puts forward and backward into graphs."""
    torch._inductor.config.deterministic = True  # else it chooses kernels by how long each takes, and sums differ
    return plain(device, torch.compile(layers().to(device), mode="reduce-overhead"))


def forks(device):
    """Children are forked with operations under way, as loaders fork their workers."""
    train = plain(device)

    def step():
        loss = train()
        for _ in range(4):
            dist.all_reduce(torch.ones(WIDTH, device=device), async_op=True).wait()
        child = os.fork()
        if not child:
            time.sleep(0.01)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0, "a child did not end in order"
        return loss

    return step


KINDS = {
    each.__name__: each
    for each in (
        ddp, fsdp2, tensor_parallel, pipeline, operations, captures, mixed, forks, capturable, reduce_overhead,
        everything,
    )
}  # fmt: skip


def say(line):
    """At once and whole: ranks share the output."""
    os.write(1, f"{line}\n".encode())


def counts():
    """The calls into the runtime so far, of all threads, by name; with PLAYED_COUNT=1."""
    room = ctypes.create_string_buffer(1 << 16)
    ctypes.CDLL("libplayed.so").played_counts(ctypes.c_long(0), room, len(room))
    return {name: int(number) for name, number in (line.split() for line in room.value.decode().splitlines())}


def by_hand(step, folder, rank):
    """Three steps under torch's profiler: their trace, and by operator the calls and their own time on the device."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as hand:
        for _ in range(3):
            step()
    hand.export_chrome_trace(str(Path(folder, f"rank{rank}.hand.json")))
    told = {each.key: (each.count, each.self_device_time_total) for each in hand.key_averages()}
    Path(folder, f"rank{rank}.hand.txt").write_text(json.dumps(told))


def is_over(rank, number, file):
    """All ranks end after the same step: rank 0 says which, and keeps the store until all have heard it."""
    if file is None:
        return True
    store = dist.distributed_c10d._get_default_store()
    if rank == 0:
        store.set(f"after {number}", "over" if os.path.exists(file) else "on")
    is_over = store.get(f"after {number}") == b"over"
    if is_over:
        store.add("heard", 1)
        while rank == 0 and store.add("heard", 0) < dist.get_world_size():
            time.sleep(0.01)
    return is_over


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("steps", type=int)
    parser.add_argument("--sleep", type=float, default=0.01)
    parser.add_argument("--until", metavar="FILE")
    parser.add_argument("--hand", metavar="FOLDER")
    parser.add_argument("--late", type=int, metavar="RANK")
    args = parser.parse_args()
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "0")):
        os.environ.setdefault(name, value)
    torch.manual_seed(0)
    rank = int(os.environ["RANK"])
    if rank == args.late:
        os.environ["PLAYED_KERNEL_NS"] = str(4 * int(os.environ["PLAYED_KERNEL_NS"]))  # read with the first kernel
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    step, losses = KINDS[args.kind](device), []
    for number in itertools.count(1):
        losses = [*losses, step()][: args.steps]
        time.sleep(args.sleep)
        if number == 3:
            if args.hand:
                by_hand(step, args.hand, rank)
            say(f"ready {os.getpid()}")
        if number == args.steps:
            say(f"made {number}")
        if number >= args.steps + EXTRA and is_over(rank, number, args.until):
            break
    torch.cuda.synchronize()
    digest = hashlib.sha256(repr([loss.item() for loss in losses]).encode()).hexdigest()[:16]
    if os.environ.get("PLAYED_COUNT") == "1":
        say(f"counts {number} {json.dumps(counts())}")
    say(f"final {rank} {digest} {torch.cuda.max_memory_allocated(device)}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
