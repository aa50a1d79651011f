"""Steps counted by a variable of the job's own: `set step=NAME`.

Called by Connection.set.  The variable is read once, at a boundary, on every rank; the step that has just ended gets
its value, and all others follow.  Invariant: all ranks count alike afterwards, or as before, or an error names the one
that does not.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any, Protocol

from .. import protocol as wire
from ..client.client import Client
from ..errors import EvalError, SilentError, UsageError
from ..settings import checked_settings, is_variable
from ..snapshot.align import VARIABLE
from .snippet import EvalResult

_PATTERNS = "", "*step*|*iter*|*count*|*batch*"  # variables; if none does, attributes that may count steps
_PAUSE_S = 0.1
_STEPS = 3  # between two looks
_MOST = 5  # proposals


class Evals(Protocol):
    """The connection."""

    def eval(self, code: str, *, write: bool = True) -> EvalResult: ...
    def names(self, pattern: str = "", *, rank: int = 0) -> list[dict[str, Any]]: ...


def count_by(connection: Evals, client: Client, name: str, timeout: float) -> None:
    """Have the job's steps counted by the variable of this name.  Raises UsageError, EvalError and what eval() does.

    Without a name it is a UsageError that proposes one.
    """
    checked_settings({"step": name})
    if not name:
        raise _proposal(connection, min(link.rank for link in client.links), time.monotonic() + timeout)
    values = {one.rank: (_number(one.echo), one) for one in connection.eval(name, write=False)}
    wrong = {rank: one for rank, (value, one) in values.items() if value is None}
    for rank, one in wrong.items():
        said = one.error or f"{name} is {str(one.echo)[:60]}, no whole number"
        raise EvalError(
            f"Rank {rank}: {said}.",
            "To look for a counter, run: probe ENDPOINT set step=",
            "no-counter",
        )
    if len({value for value, _ in values.values()}) > 1:
        told = ", ".join(f"{value} on rank {rank}" for rank, (value, _) in sorted(values.items()))
        raise EvalError(f"{name} is {told}.", "A counter of steps is the same on all ranks.", "no-counter")
    after = {rank: value - ((one.step or 0) - 1) for rank, (value, one) in values.items() if value is not None}
    _number_steps(client, after, f"{VARIABLE}{name}"[:40], time.monotonic() + timeout)


def _number_steps(client: Client, later: Mapping[int, int], source: str, deadline: float) -> None:
    """Number the steps of each rank by so many more.  Raises SilentError."""
    bases = {link: link.facts.step_base + later[link.rank] for link in client.links if link.rank in later}
    calls = {client.send(link, wire.ALIGN, base=base, source=source): base for link, base in bases.items()}
    client.forget(client.wait([*calls], deadline))
    for call, base in calls.items():
        if call.answer is not None:
            call.link.facts = call.link.facts._replace(step_base=base, step_source=source)
    if failed := next((call for call in calls if call.answer is None), None):
        error = failed.error or failed.link.silence()
        raise SilentError(f"Not all ranks count alike: {error.message}", "Run the same command again.")


def _proposal(connection: Evals, rank: int, end: float) -> UsageError:
    """Which of the job's variables grow as the steps do: two looks at one rank, some steps apart if time allows."""
    for pattern in _PATTERNS:
        first = last = _numbers(connection, pattern, rank)
        while first and (last is first or time.monotonic() < end):
            time.sleep(_PAUSE_S)
            last = _numbers(connection, pattern, rank)
            if last and next(iter(last.values()))[1] - next(iter(first.values()))[1] >= _STEPS:
                break
        both = [name for name in last if name in first]
        grown = {name: (last[name][0] - first[name][0], last[name][1] - first[name][1]) for name in both}
        if found := [name for name, (by, steps) in grown.items() if by == steps > 0]:
            grows = f"These grow by one each step: {', '.join(found[:_MOST])}."
            return UsageError(grows, f"Run: probe ENDPOINT set step={found[0]}")
    return UsageError("No variable that eval sees grows by one each step.", "See them: probe ENDPOINT names")


def _numbers(connection: Evals, pattern: str, rank: int) -> dict[str, tuple[int, int]]:
    """Name -> its whole number and the step in which it was read; variables of the job's own functions first."""
    names = [
        each for each in connection.names(pattern, rank=rank) if each["type"] == "int" and is_variable(each["name"])
    ]
    names.sort(key=lambda each: each["where"] == "a library's frame")
    values = [(each["name"], _number(each["value"]), each["step"] or 0) for each in names]
    return {name: (value, step) for name, value, step in values if value is not None}


def _number(echo: str | None) -> int | None:
    return int(echo) if echo is not None and re.fullmatch(r"-?\d+", echo) else None
