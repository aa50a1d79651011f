"""The CUDA device that a module runs on, looked up once per module and block of sampled steps, on the training thread.

Invariant: a module whose tensors are on several devices is not timed on any.
"""

from __future__ import annotations

import sys
from typing import Any

from ...names.modules import Modules
from ..modules.autograd_nodes import tensors_in

NOWHERE = -1  # not on CUDA, or on several devices
_MANY = 256  # modules searched for a tensor, at most


def index_of(device: Any) -> int:
    """The index of a torch.device or its name: 0 for cuda:0 and so on, NOWHERE for a device that is not CUDA."""
    kind, _, index = str(device).partition(":")
    return int(index or 0) if kind == "cuda" else NOWHERE


def device_of(modules: Modules, serial: int, module: Any, args: Any, kwargs: Any) -> int:
    """The device in the module's latest record, else that of its first tensor, else of its first argument tensor."""
    named = modules.device(serial)
    if named is not None:
        return index_of(named)
    tensor = _first_tensor(module)
    if tensor is None:
        tensor = next(iter(tensors_in((args, kwargs), sys.modules["torch"].Tensor)), None)
    return NOWHERE if tensor is None else index_of(tensor.device)


def device_of_optimizer(modules: Modules, serial: int, optimizer: Any) -> int:
    """The device in the optimizer's latest record, else that of its first parameter."""
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
