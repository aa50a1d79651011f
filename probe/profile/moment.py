"""The stacks of all threads of a process at this moment, read from outside.

Called by probe/snapshot/live_stacks.py.  Invariant: the process is asked nothing, and need not run; a layout that makes
no sense, for a process may say anything, gives no stacks and no error.
"""

from __future__ import annotations

import struct
import time
from typing import NamedTuple

from .code_objects import Layout
from .memory import Memory
from .sampler import Frame, Sampler, without_ours

_MOST_FRAMES = 4096  # the recursion limit is 1000, where nobody has raised it
_LOOKS, _PAUSE_S = 20, 0.002  # at a thread whose frames change while they are copied
_NO_SENSE = (OSError, LookupError, ValueError, OverflowError, MemoryError, TypeError, struct.error)


class ThreadNow(NamedTuple):
    """frames: innermost first, without the agent's; is_agents: the agent's thread, which runs a snippet of somebody's;
    holds_gil: None if that is not known."""

    ident: int
    native_id: int  # 0 if this Python does not keep it
    frames: tuple[Frame, ...]
    is_agents: bool
    holds_gil: bool | None


def threads_now(memory: Memory, layout: Layout) -> list[ThreadNow] | None:
    """Every thread that runs Python of the job; None if they cannot be read."""
    try:
        sampler = Sampler(memory, layout, _MOST_FRAMES)
        for _ in range(_LOOKS):
            if (found := _whole(sampler)) is not None:
                return found
            time.sleep(_PAUSE_S)
    except _NO_SENSE:
        pass
    return None


def _whole(sampler: Sampler) -> list[ThreadNow] | None:
    """None if a thread could not be read."""
    found = []
    for thread, sample in sampler.look():
        frames = None if sample.stack is None else sampler.frames(sample.stack)
        if frames is None:
            return None
        if shown := without_ours(frames):
            is_agents = shown[-1] != frames[-1]
            found.append(ThreadNow(thread.ident, thread.native_id, shown, is_agents, sample.holds_gil))
    return found
