"""One rank of a gloo job in which every part of torch that sends does so under the tap.

usage: as collectives.py
"""

from __future__ import annotations

import ctypes
import os
import sys

import fast_import  # noqa: F401
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional_collectives
from collectives import SCENARIOS, digest, main, network, scenario, sharded, train
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

SCENARIOS.clear()
BOUNDARIES = int(os.environ.get("BOUNDARIES", "20"))  # make soak has more


def buckets(model):
    told = model._get_ddp_logging_data()
    sizes = told.get("rebuilt_bucket_sizes") or told["bucket_sizes"]
    return [int(size) for size in sizes.split(",")]


def trained(recorder, model, steps=5):
    """Its weights, buckets, and where in the stream each step ended."""
    ends = []
    digest = train(model, steps, lambda step: ends.append(recorder.stream.position()))
    return {"ends": ends, "buckets": buckets(model), "digest": digest}


@scenario
def plain(recorder):
    return trained(recorder, DistributedDataParallel(network(), bucket_cap_mb=1))


@scenario
def static_graph(recorder):
    return trained(recorder, DistributedDataParallel(network(), bucket_cap_mb=1, static_graph=True))


@scenario
def bucket_view(recorder):
    return trained(recorder, DistributedDataParallel(network(), bucket_cap_mb=1, gradient_as_bucket_view=True))


@scenario
def hook_of_the_user(recorder):
    """Its own file, its own helper."""

    def hook(state, bucket):
        future = dist.all_reduce(bucket.buffer().div_(2), async_op=True).get_future()
        return future.then(lambda done: done.value()[0])

    model = DistributedDataParallel(network(), bucket_cap_mb=1)
    model.register_comm_hook(None, hook)
    return trained(recorder, model)


@scenario
def hook_of_torch(recorder):
    model = DistributedDataParallel(network(), bucket_cap_mb=1)
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return trained(recorder, model)


@scenario
def no_sync(recorder):
    """Two micro-batches a step: the reducer sends in the second alone."""
    model, ends = DistributedDataParallel(network(), bucket_cap_mb=1), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(4):
        with model.no_sync():
            model(torch.ones(2, 256)).sum().backward()
        ends.append(recorder.stream.position())
        model(torch.ones(2, 256)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        ends.append(recorder.stream.position())
    return {"ends": ends, "buckets": buckets(model)}


@scenario
def buffers(recorder):
    """DDP sends the buffers of rank 0 before each forward."""
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)))
    position = recorder.stream.position()
    model(torch.ones(4, 8))
    model(torch.ones(4, 8))
    return {"from": position}


@scenario
def fsdp1(recorder):
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(network(), device_id=torch.device("cpu"))
    model(torch.ones(2, 256)).sum().backward()


@scenario
def fsdp2(recorder):
    model = sharded()
    position = recorder.stream.position()
    model(torch.ones(2, 64)).sum().backward()
    return {"from": position}


@scenario
def zero(recorder):
    model = network()
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    model(torch.ones(2, 256)).sum().backward()
    position = recorder.stream.position()
    optimizer.step()
    return {"from": position}


@scenario
def dtensor(recorder):
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2,))
    sharded = distribute_tensor(torch.ones(8, 8), mesh, [Shard(0)])
    position = recorder.stream.position()
    whole = sharded.redistribute(mesh, [Replicate()]).to_local()
    return {"from": position, "values": [whole.sum().item()]}


@scenario
def tensor_parallel(recorder):
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2,))
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    position = recorder.stream.position()
    model(torch.ones(2, 8, requires_grad=True)).sum().backward()
    return {"from": position}


@scenario
def pipeline(recorder):
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    stage = PipelineStage(nn.Linear(8, 8), dist.get_rank(), 2, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 4, loss_fn=nn.functional.mse_loss)
    position = recorder.stream.position()
    if dist.get_rank() == 0:
        schedule.step(torch.ones(8, 8))
    else:
        schedule.step(target=torch.ones(8, 8))
    return {"from": position}


@scenario
def of_the_user(recorder):
    dist.all_reduce(torch.ones(2))
    dist.all_gather_object([None, None], 1)
    dist.barrier()


def sent(data, rank, mesh, pair):
    """Something of every operation that a user may call, and what came of it."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    gathered, part, exchanged = torch.empty(16), torch.empty(4), torch.empty(8)
    objects, got, two = [None, None], torch.empty(8), [torch.ones(3) * (rank + 1), data.clone()]
    dist.all_gather_into_tensor(gathered, data)
    dist.reduce_scatter_tensor(part, data.clone())
    dist.all_to_all_single(exchanged, data)
    dist.all_gather_object(objects, {"rank": rank})
    dist.broadcast(summed := data.clone(), 1)
    work = dist.all_reduce(summed, group=pair, async_op=True)
    for each in dist.batch_isend_irecv([dist.P2POp(dist.isend, data, 1 - rank), dist.P2POp(dist.irecv, got, 1 - rank)]):
        each.wait()
    work.wait()
    with dist._coalescing_manager():
        for each in two:
            dist.all_reduce(each)
    dist.barrier()
    functional = [torch.ones(1) * one["rank"] for one in objects]
    functional.append(functional_collectives.all_reduce(data, "sum", dist.group.WORLD).wait())
    functional.append(distribute_tensor(data, mesh, [Shard(0)]).redistribute(mesh, [Replicate()]).to_local())
    return [gathered, part, exchanged, summed, got, *two, *functional]


def every_kind(boundary):
    """Steps of everything that sends, with boundary(step) after each; a digest of all that came out."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    rank, pair = dist.get_rank(), dist.new_group([0, 1])
    hooked = DistributedDataParallel(network(), bucket_cap_mb=1, gradient_as_bucket_view=True, static_graph=True)
    hooked.register_comm_hook(None, default_hooks.allreduce_hook)
    models = [DistributedDataParallel(network(), bucket_cap_mb=1), hooked,
              FullyShardedDataParallel(network(), device_id=torch.device("cpu")), network(), sharded()]  # fmt: skip
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in models]
    optimizers[3] = ZeroRedundancyOptimizer(models[3].parameters(), torch.optim.SGD, lr=0.01)
    mesh, results = init_device_mesh("cpu", (2,)), []
    for step in range(BOUNDARIES):
        for model, optimizer in zip(models, optimizers, strict=True):
            model(torch.ones(2, 64 if model is models[-1] else 256) * (step + rank)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        results += sent(torch.arange(8.0) + rank + step, rank, mesh, pair)
        boundary(step)
    weights = [parameter for model in models for parameter in model.parameters()]
    return digest(*results, *[getattr(weight, "_local_tensor", weight).detach() for weight in weights])


@scenario
def toggled(recorder):
    tap = recorder.tap

    def toggle(step):
        (tap.resume if step % 2 else tap.pass_through)()
        if step % 10 == 9:
            assert tap.remove()
            tap.install()

    on = every_kind(lambda step: None)
    tap.pass_through()
    position = recorder.stream.position(), recorder.spans.position()
    off = every_kind(lambda step: None)
    nothing = (recorder.stream.position(), recorder.spans.position()) == position
    between = every_kind(toggle)
    tap.resume()
    return {"digests": [on, off, between], "nothing": nothing}


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL: no rank outlives its test
    main(sys.argv[1], sys.argv[2:])
