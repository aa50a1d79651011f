"""`probe help [VERB]`."""

from __future__ import annotations

from collections.abc import Sequence

import click

from probe.errors import UsageError
from probe.text import nearest

from ...offers import words as offered
from ...program import VERBS, program


@click.command("help")
@click.argument("words", nargs=-1, metavar="[VERB]", shell_complete=offered(VERBS))
@click.pass_context
def command(context: click.Context, words: Sequence[str]) -> None:
    """Show the help of a verb, or of the command.

    It is what VERB --help shows.

    \b
    Example:
      probe help query
    """
    if len(words) > 1:
        raise UsageError(f"Too many words: {' '.join(words[1:])!r}.", "Give one verb: probe help VERB")
    top = context.find_root()
    if not words:
        return click.echo(program.get_help(top))
    verb = program.get_command(top, words[0])
    if verb is None:
        raise UsageError(f"No such verb: {words[0]}.", nearest(words[0], VERBS) or "Run: probe help")
    with click.Context(verb, info_name=words[0], parent=top) as inner:
        return click.echo(verb.get_help(inner))
