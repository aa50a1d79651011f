"""The shell without its prompt: a lasting connection, its settings, and how it asks and shows.

Held by `probe ENDPOINT sql`, on a terminal (cli/shell/prompt.py) and for a file.  Invariant: whatever a statement does
wrong is raised, and leaves the shell as it was.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from probe.errors import ProbeError, UsageError

from ..output.formats import MOST_ROWS, Output, rows
from ..output.result import ArrowResult
from ..session import connect, ctrl_c_cancels, say, say_note
from . import statements

if TYPE_CHECKING:
    from probe.connection import Connection
    from probe.query.result import Note


class Answer(NamedTuple):
    """notes: what the user should know besides the result."""

    result: ArrowResult
    seconds: float
    notes: Sequence[Note]

    def summary(self, more: str = "") -> str:
        counted = rows(self.result.count) if self.result.names else "no result"
        return f"({counted}, {self.seconds * 1e3:.0f} ms{more})"


class Shell:
    """Close it after use.

    format: the format of results; most_rows: shown of a table on a terminal, None for all; last: the statement that
    .watch repeats; waited: whether it took so long that a rank may have been silent; lost: whether no agent was there
    to ask; ended: whether the user has left.
    """

    def __init__(self, endpoint: str | None, timeout: float, format: str, open_steps: bool, at_terminal: bool) -> None:
        self.format, self.open_steps, self.at_terminal = format, open_steps, at_terminal
        self.most_rows: int | None = MOST_ROWS
        self.last = ""
        self.waited = self.lost = self.ended = False
        self._timeout = timeout
        self._knows_unsampled = False
        self.connection: Connection = connect(endpoint, timeout)

    def close(self) -> None:
        self.connection.close()

    def connect(self, endpoint: str) -> None:
        """Replace the connection, once the new one works."""
        self._use(connect(endpoint, self._timeout))

    def find_new_agents(self) -> bool:
        """Whether there are other agents, after another attach or a restart; if so, they are queried from now on."""
        fresh = connect(self.connection.endpoint, self._timeout)
        if _identities(fresh) <= _identities(self.connection):
            fresh.close()
            self.lost = False
            return False
        self._use(fresh)
        return True

    def _use(self, fresh: Connection) -> None:
        self.connection.close()
        self.connection, self.lost, self._knows_unsampled = fresh, False, False

    @property
    def title(self) -> str:
        ranks = len(self.connection.agents)
        return f"{self.connection.endpoint}, {ranks} rank{'s' * (ranks != 1)}"

    def ask(self, sql: str) -> Answer:
        """Raises ProbeError; Ctrl-C ends the query with Interrupted."""
        try:
            sql.encode()
        except UnicodeEncodeError as error:
            raise UsageError("The SQL is not UTF-8 text.") from error
        statements.check(sql)
        if self.lost:
            self.find_new_agents()
        begun = time.monotonic()
        with ctrl_c_cancels(self.connection):
            result = self.connection.query(sql, open_steps=self.open_steps)
        seconds = time.monotonic() - begun
        self.waited = seconds >= self._timeout
        return Answer(ArrowResult(result.table), seconds, result.notes)

    def show(self, answer: Answer) -> None:
        """Write the rows, on a terminal the first most_rows of a table, then the notes and a summary."""
        output = Output(self.format, most_rows=self.most_rows)
        if answer.result.names:
            output.write(answer.result)
        self._say_notes(answer.notes)
        say(answer.summary(output.left_out(answer.result.count, ".rows all")))

    def _say_notes(self, notes: Sequence[Note]) -> None:
        """That there are steps without rows is true of most statements, and said once of a job."""
        from probe.query.result import UNSAMPLED

        for note in notes:
            if note.code != UNSAMPLED or not self._knows_unsampled:
                say_note(note.text)
        self._knows_unsampled |= any(note.code == UNSAMPLED for note in notes)


def what_next(shell: Shell) -> Iterator[str]:
    """What to do after a rank did not answer: other agents may have replaced those that are gone."""
    shell.waited = False
    try:
        if shell.find_new_agents():
            yield f"There are new agents: {shell.title}. Ask again."
    except ProbeError as error:
        shell.lost = True
        yield str(error)
        yield "Then ask again, or ask another job: .connect PID"


def _identities(connection: Connection) -> set[tuple[object, object]]:
    return {(facts.pid, facts.attached_ns) for facts in connection.agents}
