"""What a line of input does: a dot-command, or SQL statements one after the other.

Called by the prompt and, for a file, by the verb sql.
"""

from __future__ import annotations

from . import statements
from .dot_commands import is_command, obey
from .shell import Shell


def run(shell: Shell, text: str) -> None:
    """Raises ProbeError for what is wrong with it."""
    if is_command(text):
        obey(shell, text)
        return
    for statement in statements.split(text):
        shell.last = statement
        shell.show(shell.ask(statement))
