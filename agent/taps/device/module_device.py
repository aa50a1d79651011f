"""On which CUDA device a module runs: asked once a module and block of sampled steps, on the training thread.

The one invariant: a module whose tensors are on several devices runs on none that could be timed.
"""

from __future__ import annotations

import sys
from typing import Any

from ...names.modules import Modules
from ..modules.autograd_nodes import tensors_in

NOWHERE = -1  # not on CUDA, or on several devices
_MANY = 256  # modules that are looked into for a tensor


def index_of(device: Any) -> int:
    """0 for cuda:0 and so on, of a torch.device or its name; NOWHERE for any other."""
    kind, _, index = str(device).partition(":")
    return int(index or 0) if kind == "cuda" else NOWHERE


def device_of(modules: Modules, serial: int, module: Any, args: Any, kwargs: Any) -> int:
    """As it was named last, else that of its first tensor, else of the first that it is given."""
    named = modules.device(serial)
    if named is not None:
        return index_of(named)
    tensor = _first_tensor(module)
    if tensor is None:
        tensor = next(iter(tensors_in((args, kwargs), sys.modules["torch"].Tensor)), None)
    return NOWHERE if tensor is None else index_of(tensor.device)


def device_of_optimizer(modules: Modules, serial: int, optimizer: Any) -> int:
    """Likewise of an optimizer: of its first parameter."""
    named = modules.device(serial)
    if named is not None:
        return index_of(named)
    parameters = (each for group in optimizer.param_groups for each in group["params"])
    return index_of(getattr(next(parameters, None), "device", None))


def _first_tensor(module: Any) -> Any:
    waiting = [module]
    for each in waiting:
        for tensor in (*each._parameters.values(), *each._buffers.values()):
            if tensor is not None:
                return tensor
        if len(waiting) < _MANY:
            waiting += [child for child in each._modules.values() if child is not None]
    return None
