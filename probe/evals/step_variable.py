"""Steps counted by a variable of the job's own: `set step=NAME`.

Called by Connection.set.  The variable is read once, at a boundary, on every rank; the step that has just ended gets
its value, and all others follow.  Invariant: all ranks count alike afterwards, or as before.
"""

from __future__ import annotations

import re
import time
from typing import Protocol

from .. import protocol as wire
from ..client.client import Client
from ..errors import EvalError
from ..settings import checked_settings
from ..snapshot.align import VARIABLE
from .snippet import EvalResult


class Evals(Protocol):
    """The connection."""

    def eval(self, code: str, *, write: bool = True) -> EvalResult: ...


def count_by(connection: Evals, client: Client, name: str, timeout: float) -> None:
    """Have the job's steps counted by the variable of this name.  Raises UsageError, EvalError and what eval() does."""
    checked_settings({"step": name})
    values = {one.rank: (_number(one.echo), one) for one in connection.eval(name, write=False)}
    wrong = {rank: one for rank, (value, one) in values.items() if value is None}
    for rank, one in wrong.items():
        said = one.error or f"{name} is {str(one.echo)[:60]}"
        raise EvalError(f"Rank {rank}: {said}, no whole number.", f"See it: probe ENDPOINT eval {name}", "no-counter")
    if len({value for value, _ in values.values()}) > 1:
        told = ", ".join(f"{value} on rank {rank}" for rank, (value, _) in sorted(values.items()))
        raise EvalError(f"{name} is {told}.", "A counter of steps is the same on all ranks.", "no-counter")
    steps, source, calls = {rank: one.step or 0 for rank, (_, one) in values.items()}, f"{VARIABLE}{name}"[:40], []
    for link in client.links:
        if (value := values.get(link.rank, (None,))[0]) is not None:
            base = link.facts.step_base + value - (steps[link.rank] - 1)
            calls.append(client.send(link, wire.ALIGN, base=base, source=source))
            link.facts = link.facts._replace(step_base=base, step_source=source)
    client.wait(calls, time.monotonic() + timeout)


def _number(echo: str | None) -> int | None:
    return int(echo) if echo is not None and re.fullmatch(r"-?\d+", echo) else None
