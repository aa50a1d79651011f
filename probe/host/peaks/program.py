"""Measures with torch what this machine's processors can do: matrix products by type, and copies of large tensors.

Run by measurement as a program of its own, `program.py THREADS SECONDS`, with 0 threads for torch's default;
prints JSON.  Invariant: of each figure the best of several tries counts, since all else makes it smaller.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

_DTYPES = ("float64", "float32", "bfloat16", "float16")
_SIZES = {"cpu": (256, 1024, 2048), "cuda": (4096, 8192)}  # of the matrices: the first tries a type that may be slow
_COPIED_BYTES = 1 << 28  # more than the caches hold
_SLOW = 0.2  # of the time for a figure: if a product takes longer, larger ones are not tried


def main(threads: int, seconds: float) -> None:
    import torch

    if threads:
        torch.set_num_threads(threads)
    found = [measured(torch, "cpu", seconds)]
    for index in range(torch.cuda.device_count()):
        found.append(measured(torch, f"cuda:{index}", seconds))
    print(json.dumps({"torch": str(torch.__version__), "threads": torch.get_num_threads(), "processors": found}))


def measured(torch: Any, device: str, seconds: float) -> dict[str, Any]:
    """name: of the device, "" for the CPU."""
    is_cpu = device == "cpu"

    def wait() -> None:
        if not is_cpu:
            torch.cuda.synchronize(device)

    flops_s = {}
    for name in _DTYPES:
        flops_s[name] = product(torch, getattr(torch, name), device, wait, seconds)
        if name == "float32" and not is_cpu and torch.cuda.get_device_capability(device) >= (8, 0):
            torch.set_float32_matmul_precision("high")
            flops_s["tf32"] = product(torch, torch.float32, device, wait, seconds)
            torch.set_float32_matmul_precision("highest")
    source = torch.ones(_COPIED_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copying_s = best(partial(target.copy_, source), wait, seconds)
    return {
        "name": "" if is_cpu else torch.cuda.get_device_name(device),
        "flops_s": {name: value for name, value in flops_s.items() if value},
        "bytes_s": 2 * _COPIED_BYTES / copying_s,
    }


def product(torch: Any, dtype: Any, device: str, wait: Callable[[], None], seconds: float) -> float:
    """FLOPs a second, 0 for a type that the device does not have."""
    most = 0.0
    for size in _SIZES[device.partition(":")[0]]:
        try:
            left, right = (torch.ones(size, size, device=device).to(dtype) for _ in range(2))
            result = left @ right
            took_s = best(partial(torch.mm, left, right, out=result), wait, seconds / 2)
        except RuntimeError:  # not implemented, or too little memory
            return most
        most = max(most, 2 * size**3 / took_s)
        if took_s > _SLOW * seconds:
            break
    return most


def best(call: Callable[[], Any], wait: Callable[[], None], seconds: float) -> float:
    """Seconds of the fastest of the calls that this time is enough for, of two at least after a first one."""
    times, end = list[float](), 0.0
    while len(times) < 3 or time.perf_counter() < end:
        wait()
        begun = time.perf_counter()
        call()
        wait()
        times.append(time.perf_counter() - begun)
        end = end or time.perf_counter() + seconds
    return min(times[1:])


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
