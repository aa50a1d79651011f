"""`probe ENDPOINT serve`."""

from __future__ import annotations

import click

import probe
from probe.errors import UsageError

from ...options import KEY, Verb, endpoint_argument
from ...session import say


@click.command("serve", cls=Verb)
@click.option("--listen", "place", metavar="HOST[:PORT]", help="Also accept queries from other hosts. Needs a key.")
@click.option("--foreground", is_flag=True, help="Run the server in this command, until the job ends or Ctrl-C.")
@endpoint_argument
def command(endpoint: str | None, place: str | None, foreground: bool) -> None:
    """Start the server beside the job, in place of the one it has.

    attach starts one already. Use this to listen for other hosts later, or with --foreground where a process that a
    command leaves behind is ended with it: Slurm steps, containers.

    \b
    Example:
      probe 4242 serve --listen 0.0.0.0:29600 --key job.key
      srun --overlap --jobid $JOB probe $PID serve --foreground
    """
    from probe.attach.listening import listen

    key = click.get_current_context().meta.get(KEY)
    order = listen(place, key).order() if place is not None else None
    if key is not None and place is None:
        raise UsageError("--key is for --listen.", "For example: --listen 0.0.0.0 --key job.key")
    with probe.connect(endpoint) as connection:  # Ctrl-C is not for the connection, but for the server
        connection.serve(order, foreground=foreground, on_ready=_announce)


def _announce(endpoints: list[str]) -> None:
    say(f"serving at {' and '.join(endpoints)}")
