"""One rank of a gloo job in which every part of torch that sends does so under the tap.

usage: as collectives.py
"""

from __future__ import annotations

import ctypes
import sys

import torch
import torch.distributed as dist
from collectives import SCENARIOS, main, network, scenario, train
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

SCENARIOS.clear()


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
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    mesh = init_device_mesh("cpu", (2,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
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


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL: no rank outlives its test
    main(sys.argv[1], sys.argv[2:])
