"""`probe ENDPOINT detach`."""

from __future__ import annotations

from collections.abc import Sequence

import click

from ..attaching import detach_all
from ..options import Verb, endpoint_option, one_endpoint
from ..session import connected


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
        detach_all(connection, click.echo)
