"""From two texts to two sides of runs: `4242@100..400`, the folder of a recording, or one of several jobs, each a run.

Called by probe.compare and the command.  Invariant: each endpoint is connected to once, and every connection is closed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from .connection import Connection, connect
from .errors import UsageError

if TYPE_CHECKING:
    from .diagnose.compare.report import Compared
    from .diagnose.compare.run import Run

_OF_STEPS = re.compile(r"(.+)@([^@/]*\.\.[^@/]*)", re.DOTALL)
_STEPS = re.compile(r"(\d{1,18})\.\.(\d{1,18})")
_SETTINGS = ("command",)  # of a manifest


def compare(before: str, after: str, *, runs_differ: float = 0.01) -> Compared:
    """What differs between two sides: throughput, phases, modules, collectives, memory, findings and settings.

    A side is an endpoint, with `@100..400` for some of its steps; the folder of a recording; or one that holds several
    jobs, each of which is a run.  runs_differ: by how much runs of one job are assumed to differ, as a share of the
    step, where fewer than three runs a side do not show it.  Raises UsageError, EndpointError, SilentError, QueryError.
    Cost: some 40 queries a run.

    Example: `print(probe.compare("runs/job=before", "runs/job=after").sentence)`
    """
    from .diagnose.compare.compare import compare as compare_runs

    with Opening(connect) as opening:
        return compare_runs(*opening.sides(before, after), runs_differ)


class Opening(ExitStack):
    """The runs of both sides, connected to until it is left.  connected: how to connect to an endpoint."""

    def __init__(self, connected: Callable[[str], Connection]) -> None:
        super().__init__()
        self._connected, self._connections = connected, dict[str, Connection]()
        self._is_cancelled, self._notes = False, list[str]()

    def cancel(self) -> None:
        """End what runs with Interrupted; for a handler of signals.  Raises nothing."""
        self._is_cancelled = True
        for connection in self._connections.values():
            connection.cancel()

    @property
    def notes(self) -> list[str]:
        """What the user should know about the last calls."""
        return list(
            dict.fromkeys([*self._notes, *(note for each in self._connections.values() for note in each.notes)])
        )

    def sides(self, before: str, after: str) -> tuple[list[Run], list[Run]]:
        """Raises UsageError, EndpointError, SilentError."""
        sides = self._runs(before.strip()), self._runs(after.strip())
        shared = next((old.tables.endpoint for old in sides[0] for new in sides[1] if _overlap(old, new)), None)
        if shared is not None:
            hint = f"Compare two stretches: probe compare {shared}@100..400 {shared}@500..800"
            raise UsageError(f"A and B share steps of {shared}.", hint)
        return sides

    def _runs(self, text: str) -> list[Run]:
        from .diagnose.compare.run import Run

        match = _OF_STEPS.fullmatch(text)
        endpoint, steps = (match[1], _steps(text, match[2])) if match else (text, None)
        return [Run(self._connect(each), steps, _settings(each)) for each in _jobs(endpoint)]

    def _connect(self, endpoint: str) -> Connection:
        if endpoint not in self._connections:
            made = self.enter_context(self._connected(endpoint))
            made.is_unwanted = lambda: self._is_cancelled
            self._connections[endpoint] = made
            self._see_last_run(made)
        return self._connections[endpoint]

    def _see_last_run(self, made: Connection) -> None:
        from .record.recording import Recording

        if isinstance(made, Recording):
            self.enter_context(made.last_run())
            self._notes += made.notes


def _steps(text: str, said: str) -> tuple[int, int]:
    match = _STEPS.fullmatch(said)
    if match is None or int(match[1]) > int(match[2]):
        raise UsageError(f"{text} names no steps.", "A range is from the first step to the last: @100..400")
    return int(match[1]), int(match[2])


def _overlap(old: Run, new: Run) -> bool:
    """Whether a step counts on both sides."""
    if old.tables is not new.tables or old.steps is None or new.steps is None:
        return old.tables is new.tables
    return old.steps[0] <= new.steps[1] and new.steps[0] <= old.steps[1]


def _jobs(endpoint: str) -> list[str]:
    """Each job of a folder of recordings; an endpoint of another kind stands for itself."""
    from .record.archive import Archive

    return [str(job) for job in Archive(Path(endpoint)).jobs] or [endpoint]


def _settings(endpoint: str) -> dict[str, str]:
    """What a recording says of its job; {} of any other endpoint."""
    from .record import manifest

    said = manifest.read(Path(endpoint))
    return {name: str(said[name]) for name in _SETTINGS if said.get(name)}
