"""`probe ENDPOINT flame`."""

from __future__ import annotations

import os

import click

from probe.errors import UsageError

from ...options import Verb, endpoint_argument, step_range
from ...output.formats import Output
from ...session import connected, say


@click.command("flame", cls=Verb)
@endpoint_argument
@click.option("-o", "--output", "out", metavar="FILE", default="flame.html", show_default=True,
              help="Write FILE.html, a page, or FILE.speedscope.json.")  # fmt: skip
@click.option("--against", metavar="FILE", help="Show the difference from the profile in a file written before.")
@click.option(
    "--steps", metavar="A..B", callback=step_range, help="Show these steps of all profiles, not the last one."
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
    from probe.export.flame_files import about, read, require_format, text_of
    from probe.export.profile_rows import queried

    require_format(out, against is not None)
    output, before = Output("file", out), None if against is None else read(against)
    if against and os.path.realpath(against) == os.path.realpath(out):
        raise UsageError(f"{out} would replace the file to compare with.", "Give another: -o FILE")
    if before is not None and before.has_threads != all_threads:
        which = ("main threads", "all threads")[before.has_threads]
        raise UsageError(f"{against} has {which}.", f"Run it with{'' if before.has_threads else 'out'} --all-threads.")
    with connected(endpoint) as connection:
        name = connection.endpoint
        taken = queried(lambda sql: connection.query(sql, open_steps=True), name, steps, all_threads)
    text = text_of(out, taken, name, before, against or "")
    with output.opened() as sink:
        sink.write(text.encode())
    say(f"Wrote {out}: {about(taken)}.")
