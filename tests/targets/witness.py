"""A small training that keeps a record of what its own process looks like: target of tests that nothing is left.

    python witness.py STATE_FILE [--gloo] [--uncollected]

Told by a file STATE_FILE.ask, which it removes, it writes to STATE_FILE after the next step a JSON object of everything
that an attach could leave behind.
"""

import atexit
import gc
import json
import os
import sys
import threading
import time

import fast_import  # noqa: F401
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader


def state(step: int) -> dict:
    import torch.nn.modules.module as module_py
    import torch.optim.optimizer as optimizer_py
    import torch.utils.data.dataloader as loader_py

    if "--uncollected" not in sys.argv:
        gc.collect()
    descriptors = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            descriptors[fd] = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue
    return {
        "step": step,
        "pid": os.getpid(),
        "threads": len(os.listdir("/proc/self/task")),
        "python_threads": sorted(thread.name for thread in threading.enumerate()),
        "descriptors": sorted(link.split(":")[0] if ":" in link else link for link in descriptors.values()),
        "modules": sorted(sys.modules),
        "path": [*sys.path, *map(repr, sys.meta_path), *map(repr, sys.path_hooks)],
        "main": sorted(globals()),
        "exit_handlers": atexit._ncallbacks(),
        "call": module_py.Module._wrapped_call_impl.__code__.co_names,
        "globals": sorted(
            name for module in (module_py, optimizer_py) for name in vars(module) if name.startswith("_probe")
        ),
        "os": sorted(name for name in vars(os) if name.startswith("_probe")),
        "engine": [torch.autograd._engine_run_backward.__code__.co_name, id(torch.autograd._engine_run_backward)],
        "loader": id(loader_py._BaseDataLoaderIter.__next__),
        "hooks": [len(optimizer_py._global_optimizer_pre_hooks), len(optimizer_py._global_optimizer_post_hooks)],
        "kernels": torch._C._dispatch_has_kernel_for_dispatch_key("c10d::allreduce_", "BackendSelect"),
        "wait": dist.is_initialized() and type(dist.distributed_c10d.Work.__dict__["wait"]).__name__,
        "record_function": id(torch.autograd.profiler.record_function.__enter__),
        "trace": repr(sys.gettrace()),
        "streams": [id(sys.stdout), id(sys.stderr)],
        "switch_interval": sys.getswitchinterval(),
        "collector": [gc.isenabled(), gc.get_threshold(), len(gc.callbacks)],
        "of_an_agent": sum(str(type(thing).__module__).startswith("_probe_agent") for thing in gc.get_objects()),
        "temporary": sorted(os.listdir(os.environ["TMPDIR"])) if "TMPDIR" in os.environ else [],
        "maps": sum(1 for _ in open("/proc/self/maps")),
        "rss_pages": int(open("/proc/self/statm").read().split()[1]),
    }


def main() -> None:
    torch.set_num_threads(1)
    if "--uncollected" in sys.argv:
        gc.disable()
    if "--gloo" in sys.argv:
        dist.init_process_group("gloo")
    rank = int(os.environ.get("RANK", 0))
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    if dist.is_initialized():
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters())
    loader = DataLoader(torch.randn(1_000_000, 8), batch_size=4)
    for step, batch in enumerate(loader):
        model(batch).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.04)
        if rank == 0 and os.path.exists(sys.argv[1] + ".ask"):
            with open(sys.argv[1] + ".new", "w") as file:
                json.dump(state(step), file)
            os.replace(sys.argv[1] + ".new", sys.argv[1])
            os.remove(sys.argv[1] + ".ask")
        if step == 5:
            state(step)  # to look leaves something behind itself, once
            print(f"ready {os.getpid()}", flush=True)


if __name__ == "__main__":
    main()
