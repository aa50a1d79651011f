"""What the training thread does outside of the phases of the step: no batch, no model, no pass, no optimizer.

Used by rules on the training loop.  Invariant: where the calls of modules were not recorded, frames tell them.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import takewhile

from ..watched import SAMPLED
from .places import Places, Stack, file_of, function_of

_CALL = re.compile(r"Module\._(wrapped_)?call_impl |_wrapped_call_impl ")
_SAVES = re.compile(r"(^|\.)_*(async_)?save(_|\b)")
_SAVES_A_MODEL = re.compile(
    r"(^|\.)_*save(_?(checkpoint|model|state|weights|pretrained)|_\w+_checkpoint)", re.IGNORECASE
)
_SAVERS = ("torch/serialization.py", "torch/distributed/checkpoint/", "torch/jit/_serialization.py", "safetensors/")
_COMPILERS = ("torch/_dynamo/convert_frame.py", "torch/_inductor/")


def outside(everything: Places) -> Places:
    """What of it is outside of the phases; the end of a loader's workers is the loader's."""
    return everything.where(
        lambda stack: stack.phase in ("other", None) and not is_in_model(stack) and not stack.has(is_loading)
    )


def python_outside(everything: Places) -> Places:
    """Of that, what the job's own code or a library does, not torch: where that is called from the job's own code, it
    lets go of the GIL."""
    return outside(everything).where(
        lambda stack: not file_of(stack.frames[-1]).startswith("torch/") and not _lets_go(everything, stack)
    )


def unknown_outside(everything: Places) -> Places:
    """Of that, what is called from the job's own code and lets go of the GIL: a library in C that reads or decodes, a
    wait, or operations on tensors; which of them, frames do not tell."""
    return outside(everything).where(lambda stack: _lets_go(everything, stack))


def _lets_go(everything: Places, stack: Stack) -> bool:
    """Whether something that is no Python was called from the job's own code, and lets go of the GIL."""
    return stack.holds_gil is False and everything.is_own(stack.frames[-1])


def is_in_model(stack: Stack) -> bool:
    """Whether a module is being called, or compiled."""
    return stack.has(_is_call)


def calls_of_models(everything: Places) -> tuple[Places, Places]:
    """Those in sampled steps; and those in others that come from where no sampled step calls a model: their mode is not
    known."""
    recorded = everything.where(lambda stack: stack.phase in SAMPLED and is_in_model(stack))
    known = {frame for stack in recorded.stacks for frame in _around_model(stack)}
    others = everything.where(lambda stack: stack.phase is None and is_in_model(stack))
    return recorded, others.where(lambda stack: not known.issuperset(_around_model(stack)))


def _around_model(stack: Stack) -> tuple[str, ...]:
    """The frames around the outermost call of a module."""
    return tuple(takewhile(lambda frame: not _is_call(frame), stack.frames))


@lru_cache(10_000)
def _is_call(frame: str) -> bool:
    return bool(_CALL.search(frame)) or file_of(frame).startswith(_COMPILERS)


def is_loading(frame: str) -> bool:
    """Whether it is a function of torch's loaders."""
    return file_of(frame).startswith("torch/utils/data/")


def is_saving(frame: str) -> bool:
    """Whether a function writes a checkpoint."""
    by_torch = file_of(frame).startswith(_SAVERS) and _SAVES.search(function_of(frame))
    return bool(by_torch or _SAVES_A_MODEL.search(function_of(frame)))
