"""What stays of the agent: nothing of it that runs, not in a forked child of the training process either.

Python has no way to take a fork callback out again, so exactly one is registered in a process, however
often one attaches; it calls what stands in a list that outlives the agent.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

_PRIVATE = "_probe_agent"  # the name under which an attached agent is loaded
_CELL = "_probe_after_fork"  # on the os module, so that the next agent finds it
_LAID_BY = "_probe_laid_by"  # on the os module; the bootstrap takes it from there


def in_child(call: Callable[[], None]) -> None:
    """Have call() run first thing in every forked child (DataLoader workers), until clear()."""
    cell: list[Callable[[], None]] | None = getattr(os, _CELL, None)
    if cell is None:
        cell = []
        setattr(os, _CELL, cell)
        os.register_at_fork(after_in_child=_caller(cell))
    cell[:] = [call]


def clear() -> None:
    """Nothing more is to be done in a forked child."""
    cell: list[Callable[[], None]] | None = getattr(os, _CELL, None)
    if cell is not None:
        cell.clear()


def forget_modules() -> None:
    """The agent's modules leave sys.modules; a package that the job imported itself stays."""
    for name in [name for name in sys.modules if name.partition(".")[0] == _PRIVATE]:
        del sys.modules[name]


def lay_by_modules() -> None:
    """The agent's modules leave sys.modules, and wait for the next attach of this very code.

    Left to the collector they would pile up: it comes once a quarter of all objects are new, so late in a large job.
    """
    modules = {name: module for name, module in list(sys.modules.items()) if name.partition(".")[0] == _PRIVATE}
    setattr(os, _LAID_BY, modules)
    forget_modules()


def _caller(cell: list[Callable[[], None]]) -> Callable[[], None]:
    def call() -> None:
        for each in cell:
            each()

    return call
