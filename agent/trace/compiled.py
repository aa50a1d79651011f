"""What torch.compile has built of the job's functions: there no trace may stand.

Called by the traces.  Dynamo reads the code of each function that it builds into a larger one, and checks by guards
that the function still has that code; a kernel in its place would have it compile anew, and it cannot read one.
Invariant: no kernel is in place while dynamo compiles; and nothing of dynamo is changed but its list of callbacks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import CodeType
from typing import Any

from ..inspect.exclusive import exclusively

BUILT_IN = "torch.compile has built it into a larger function, which does not call it"
UNKNOWN = "the job uses torch.compile, and this torch does not tell what it has compiled"
COMPILES = "torch.compile is compiling; try again after that"
BEGINS = "torch.compile has begun to compile, for which every function needs its own code; trace it again after that"


def why_not(code: CodeType) -> str:
    """Why a function with this code may not be traced; "" if it may.  Takes some 10 µs for each guard."""
    compiled = list(_compiled())
    if not compiled:
        return ""
    try:
        entries_of = sys.modules["torch"]._C._dynamo.eval_frame._debug_get_cache_entry_list
        parts = [part for each in compiled for entry in entries_of(each) for part in entry.guard_manager.code_parts]
    except (AttributeError, TypeError):
        return UNKNOWN
    if _callbacks() is None:
        return UNKNOWN
    guard = f".__code__, {id(code)})"
    return BUILT_IN if any(guard in part for part in parts) else ""


def while_it_does_not_compile(change: Callable[[], None]) -> bool:
    """Make a short change at a moment at which no thread compiles; False if that did not come."""
    dynamo: Any = sys.modules.get("torch._dynamo.convert_frame")
    if dynamo is None:
        change()
        return True
    return exclusively(change, lambda code: code.co_filename == dynamo.__file__)


def call_at_begin(call: Callable[..., None]) -> None:
    """Have it called, on the thread that compiles, each time that a compilation begins."""
    callbacks = _callbacks()
    if callbacks is not None and call not in callbacks:
        callbacks.append(call)


def call_no_more(call: Callable[..., None]) -> None:
    """Undo that."""
    callbacks = _callbacks()
    if callbacks is not None:
        with suppress(ValueError):
            callbacks.remove(call)


def _compiled() -> Iterator[CodeType]:
    tracker: Any = getattr(sys.modules.get("torch._dynamo.convert_frame"), "input_codes", None)
    for reference in list(getattr(tracker, "seen", ())):
        if (code := reference()) is not None:
            yield code


def _callbacks() -> list[Callable[..., None]] | None:
    """Dynamo's own list, which it goes through when a compilation begins; None before torch 2.3."""
    handler: Any = getattr(sys.modules.get("torch._dynamo.callback"), "callback_handler", None)
    found = getattr(handler, "start_callbacks", None)
    return found if type(found) is list else None
