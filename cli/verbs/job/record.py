"""`probe ENDPOINT record DIR`."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path
from threading import Event

import click

from probe.errors import UsageError

from ...options import KEY, Verb, endpoint_option, one_endpoint
from ...recording import Recorded, keep_options
from ...session import say
from ...signals import on_signals


@click.command("record", cls=Verb)
@click.argument("words", nargs=-1, metavar="DIR")
@endpoint_option
@click.option(
    "--name",
    metavar="NAME",
    default="",
    help="Name of the job in DIR; a later run of the same name gets -2 behind it, and so on. Default: its own, or one "
    "made of its command.",
)
@click.option("--detach", is_flag=True, help="Leave a process beside the job that does it until the job ends.")
@keep_options
@click.pass_context
def command(
    context: click.Context, words: Sequence[str], endpoints: Sequence[str], name: str, detach: bool,
    keep: float | None, keep_days: float | None,
) -> None:  # fmt: skip
    """Record the tables of a job into DIR, as Parquet files.

    First what its agents still hold, then what comes, until the job ends or Ctrl-C. A kill costs the last ten seconds
    at most. DIR is an endpoint from the beginning: probe DIR query, why, stragglers, ask, sql. A later record into
    the same DIR goes on where this one ends. A host records its own ranks.

    \b
    Example:
      probe 4242 record runs
      probe 4242 record runs --name exp7 --keep 10GB --keep-days 7
      probe 4242 record runs --detach
      probe runs query "SELECT rank, AVG(duration) FROM python.step_trace GROUP BY 1"
    """
    endpoint, folder = _endpoint_and_folder(endpoints, words)
    from probe.client.endpoints import resolve

    known = resolve(endpoint).endpoint
    if detach:
        Recorded(folder, keep, keep_days).start(known, name, key=context.meta.get(KEY))
        return
    from probe.record.recorder import Order, Recorder, agents_of
    from probe.record.retention import Keep
    from probe.serve.confinement import end_first

    end_first()
    stop = Event()
    order = Order(Path(folder), name, Keep(keep, keep_days))
    recorder = Recorder(agents_of(known), order, say, context.meta.get(KEY))
    say(f"Recording into {recorder.folder}; Ctrl-C ends it.")
    with on_signals((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), stop.set):
        recorder.run(stop.wait)


def _endpoint_and_folder(endpoints: Sequence[str], words: Sequence[str]) -> tuple[str | None, str]:
    """A last word is the folder.  Raises UsageError."""
    if not words:
        raise UsageError("No folder given.", "For example: probe 4242 record runs")
    if len(words) > 2:
        raise UsageError(f"More than one folder: {' '.join(words[1:])}.", "Give one.")
    return one_endpoint(endpoints, words[:-1]), words[-1]
