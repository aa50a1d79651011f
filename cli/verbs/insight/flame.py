"""`probe ENDPOINT flame`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from probe.errors import UsageError

from ...options import Verb, endpoint_argument, step_range
from ...output.formats import Output
from ...session import connected, say, say_note

if TYPE_CHECKING:
    from probe.connection import Connection
    from probe.export.profile_rows import ProfileRows


@click.command("flame", cls=Verb)
@endpoint_argument
@click.option("-o", "--output", "out", type=click.Path(), metavar="FILE", default="flame.html", show_default=True,
              help="Write FILE.html, a page, or FILE.speedscope.json.")  # fmt: skip
@click.option(
    "--against",
    type=click.Path(),
    metavar="FILE",
    help="Show the difference from the profile in a file written before.",
)
@click.option(
    "--steps", metavar="A..B", callback=step_range, help="Show these steps of all profiles, instead of the last."
)
@click.option("--all-threads", is_flag=True, help="Show all threads, not only main threads.")
def command(
    endpoint: str | None, out: str, against: str | None, steps: tuple[int, int] | None, all_threads: bool
) -> None:
    """Draw the last profile as a flame graph.

    It shows what `probe ENDPOINT profile` has seen: the calls of all ranks, outermost at the top, as wide as the time
    that they took. The page needs no network; in it you can search, zoom, and choose a rank and a phase. With
    --against, colours show which calls take more or less time per step than in a page or speedscope file written
    before, or a larger or smaller share of the time where a file does not tell the steps.

    \b
    Example:
      probe 4242 profile && probe 4242 flame -o before.html
      probe 4242 flame --against before.html -o difference.html
      probe 4242 flame -o exp7.speedscope.json
    """
    from probe.export.flame_files import about, require_format, text_of
    from probe.export.profile_rows import queried
    from probe.query.result import Result

    require_format(out, against is not None)
    output, before = Output("file", out), _before(against, out, all_threads)
    with connected(endpoint) as connection:
        connection.require_one_job()
        name, results = connection.endpoint, list[Result]()

        def query(sql: str) -> Result:
            results.append(connection.query(sql, open_steps=True))
            return results[-1]

        taken = queried(query, _remedy(connection), steps, all_threads)
    for note in results[0].notes:
        say_note(note.text)
    text = text_of(out, taken, name, before, against or "")
    with output.opened() as sink:
        sink.write(text.encode())
    say(f"Wrote {out}: {about(taken)}.")


def _remedy(connection: Connection) -> str:
    """How to get a profile where there is none."""
    from probe.record.recording import Recording

    if isinstance(connection, Recording):
        return "A recorder keeps what is taken while it records: probe PID profile"
    return f"Run: probe {connection.endpoint} profile"


def _before(against: str | None, out: str, all_threads: bool) -> ProfileRows | None:
    """What to compare with.  Raises UsageError."""
    from probe.export.flame_files import read

    if against is None:
        return None
    if os.path.realpath(against) == os.path.realpath(out):
        raise UsageError(f"{out} would replace the file to compare with.", "Give another: -o FILE")
    before = read(against)
    if before.has_threads != all_threads:
        which = "all threads" if before.has_threads else "main threads only"
        raise UsageError(f"{against} has {which}.", f"Run it with{'' if before.has_threads else 'out'} --all-threads.")
    return before
