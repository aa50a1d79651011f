"""Removes the agent from forked children, and its modules after detach: no code of the agent runs in either case.

Python cannot unregister a fork callback, so each kind is registered once per process, however often an agent attaches;
it calls the functions in a list that outlives the agent.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

_PRIVATE = "_probe_agent"  # the name under which an attached agent is loaded
_CALLBACKS = "_probe_after_fork"  # on the os module, so that the next agent finds the list
_FOR_GOOD = "_probe_after_fork_for_good"  # likewise
_LAID_BY = "_probe_laid_by"  # on the os module; the bootstrap takes the modules from there
_ROOT = sys.modules.get(_PRIVATE)  # the package that this module is loaded into


def in_child(call: Callable[[], None]) -> None:
    """Run call() first in every forked child (DataLoader workers), until clear()."""
    _callbacks(_CALLBACKS)[:] = [call]


def in_child_for_good(calls: list[Callable[[], None]]) -> None:
    """Run these, none of which is the agent's code, in every forked child, also after detach."""
    _callbacks(_FOR_GOOD)[:] = calls


def _callbacks(name: str) -> list[Callable[[], None]]:
    callbacks: list[Callable[[], None]] | None = getattr(os, name, None)
    if callbacks is None:
        callbacks = []
        setattr(os, name, callbacks)
        os.register_at_fork(after_in_child=lambda: [callback() for callback in callbacks])
    return callbacks


def clear() -> None:
    """Run nothing more in forked children."""
    getattr(os, _CALLBACKS, []).clear()


def forget_modules() -> None:
    """Remove the agent's modules from sys.modules; a package that the job imported itself stays."""
    for name in [name for name in list(sys.modules) if name.partition(".")[0] == _PRIVATE]:  # others import meanwhile
        del sys.modules[name]


def lay_by_modules() -> None:
    """Remove the agent's modules from sys.modules, and keep them for the next attach of exactly this code.

    Left to the garbage collector they would pile up: a full collection runs only once a quarter of all objects are new,
    which takes long in a large job.
    """
    if sys.modules.get(_PRIVATE, _ROOT) is not _ROOT:  # an attach of another version did not wait: they are its agent's
        return
    modules = {name: module for name, module in list(sys.modules.items()) if name.partition(".")[0] == _PRIVATE}
    setattr(os, _LAID_BY, modules)
    forget_modules()
