"""`probe ENDPOINT detach`."""

from __future__ import annotations

from collections.abc import Sequence

import click

from ..options import Verb, endpoint_option, one_endpoint
from ..session import connected, say


@click.command("detach", cls=Verb)
@click.argument("words", nargs=-1, metavar="")
@endpoint_option
def command(words: Sequence[str], endpoints: Sequence[str]) -> None:
    """Take the agent out of the job again.

    The job runs on as if nothing had been there. What must stay is named.

    \b
    Example:
      probe 4242 detach
    """
    with connected(one_endpoint(endpoints, words)) as connection:
        agents = list(connection.agents)
        left = connection.detach()
    for facts in agents:
        click.echo(f"detached  rank {facts['rank'] or 0}  pid {facts['pid']}")
    for line in left:
        say(line)
