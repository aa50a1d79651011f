"""`probe ENDPOINT detach`."""

from __future__ import annotations

import click

from ...attaching import detach_all
from ...options import Verb, endpoint_argument
from ...output.formats import Output, output_options
from ...output.result import Records
from ...session import connected


@click.command("detach", cls=Verb)
@endpoint_argument
@output_options
def command(endpoint: str | None, output: Output) -> None:
    """Remove the agent from the job.

    Everything that runs is removed; a little unused code stays loaded. Anything else that must stay is reported.
    Without an endpoint: the only job on this host that is attached to; with several, an error.

    \b
    Example:
      probe 4242 detach
    """
    with connected(endpoint) as connection:
        if output.is_default:
            return detach_all(connection)
        gone = list[tuple[int | None, int]]()
        try:
            detach_all(connection, lambda facts: gone.append((facts.rank, facts.pid)))
        finally:
            output.show(Records(("rank", "pid"), gone))
