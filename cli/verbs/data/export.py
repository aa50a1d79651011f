"""`probe ENDPOINT export`."""

from __future__ import annotations

import click

from probe.text import title

from ...options import Verb, endpoint_argument, size, step_range, timeout_option
from ...output.formats import Output, output_options, writable_file
from ...output.result import Records
from ...session import connected, say, say_note


@click.command("export", cls=Verb)
@endpoint_argument
@click.option(
    "--perfetto",
    "file",
    type=click.Path(),
    callback=writable_file,
    metavar="FILE",
    required=True,
    help="Write a trace for ui.perfetto.dev to FILE.",
)
@click.option("--steps", callback=step_range, metavar="A..B", help="Only these steps, as in 100..120.")
@timeout_option(10.0)
@click.option("--max-fetch", callback=size, metavar="SIZE", default="4GB", show_default=True,
              help="Refuse to fetch more than this for a kind of track.")  # fmt: skip
@output_options
def command(
    endpoint: str | None, file: str, steps: tuple[int, int] | None, timeout: float, max_fetch: float, output: Output
) -> None:  # fmt: skip
    """Write the rows of all ranks as a trace for Perfetto.

    Each rank is a group of tracks, all on one clock: its steps and their phases, module calls by thread, batches of
    loaders, collectives with arrows between ranks, counters of the process and its devices. Open the file at
    https://ui.perfetto.dev: nothing leaves your browser. It needs the package perfetto.

    \b
    Example:
      probe 4242 export --perfetto job.pftrace
      probe 4242 export --perfetto steps.pftrace --steps 100..120
    """
    from probe.export.perfetto import export

    with connected(endpoint, timeout) as connection:
        connection.require_one_job()
        done = export(connection, file, steps, max_fetch)
    for note in done.notes:
        say_note(note)
    rows = [(each.kind, each.rows, each.slices, each.values, each.left_out) for each in done.kinds if each.rows]
    output.show(Records(("track", "rows", "slices", "values", "left_out"), rows))
    written = f"{done.bytes / 1e6:.1f} MB" if done.bytes >= 100_000 else f"{done.bytes / 1e3:.1f} kB"
    say(f"Wrote {file}: {written}, {done.slices} slices of {title(done.ranks)}. Open it at https://ui.perfetto.dev")
