"""`probe fleet DIR query SQL`."""

from __future__ import annotations

from collections.abc import Sequence

import click

from probe.errors import UsageError

from ...offers import endpoints as folders
from ...options import TextCommand, endpoint_and_text, target_option, text_argument
from ...output.formats import Output, limited_output_options
from ...output.result import ArrowResult
from ...session import say_note


@click.command("fleet", cls=TextCommand)
@text_argument("SQL", target_option("The folder of recordings.", folders))
@click.option(
    "--address",
    metavar="ADDRESS",
    default="local",
    show_default=True,
    help="A Ray cluster: HOST:PORT, ray://HOST:PORT or auto. local starts Ray here.",
)
@limited_output_options
def command(words: Sequence[str], endpoints: Sequence[str], file: str | None, address: str, output: Output) -> None:
    """Run SQL over recordings on a Ray cluster.

    For folders of recordings that one machine does not get through: Daft runs the SQL, on a cluster whose machines see
    DIR under the same path. The answer is that of `probe DIR query`. What Daft lacks, or answers otherwise than DuckDB,
    is refused, with the nearest way. It needs the packages daft and ray.

    \b
    Example:
      probe fleet runs query "SELECT job, AVG(duration) FROM python.step_trace GROUP BY 1"
      probe fleet runs query --address 10.0.0.7:6379 -f slow.sql
    """
    endpoint, sql = endpoint_and_text(endpoints, _without_query(words), file, "SQL")
    if endpoint is None:
        raise UsageError("No folder was given.", 'For example: probe fleet runs query "SELECT …"')
    from probe.record.fleet.fleet import Fleet, on_ray

    fleet = Fleet(endpoint)
    fleet.translated(sql)  # refused before a cluster starts
    with on_ray(address):
        table = fleet.query(sql)
    for line in fleet.skipped:
        say_note(line)
    output.show(ArrowResult(table))


def _without_query(words: Sequence[str]) -> list[str]:
    """`fleet` has one verb so far, which may be left out."""
    place = next((place for place, word in enumerate(words) if word == "query"), None)
    return [word for number, word in enumerate(words) if number != place]
