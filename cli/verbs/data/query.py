"""`probe ENDPOINT query SQL`."""

from __future__ import annotations

from collections.abc import Sequence

import click

from ...options import (
    TextCommand,
    endpoint_and_text,
    no_server_option,
    open_option,
    size,
    text_argument,
    timeout_option,
)
from ...output.formats import Output, limited_output_options
from ...querying import query


@click.command("query", cls=TextCommand)
@text_argument("SQL")
@open_option
@timeout_option(10.0)
@click.option("--min-ranks", type=click.IntRange(min=1), metavar="N", default=1, show_default=True,
              help="Fail with status 8 if fewer than N ranks have rows.")  # fmt: skip
@click.option("--max-fetch", callback=size, metavar="SIZE", default="1GB", show_default=True,
              help="Refuse to fetch more than this: 500MB, 4GB.")  # fmt: skip
@click.option("--explain-fetch", "explain", is_flag=True, help="Show what each rank sent, and how long each part took.")
@no_server_option
@limited_output_options
def command(
    words: Sequence[str], endpoints: Sequence[str], file: str | None, open_steps: bool, timeout: float,
    min_ranks: int, max_fetch: float, explain: bool, output: Output,
) -> None:  # fmt: skip
    """Run DuckDB SQL over the rows of all ranks.

    The SQL is one word: quote it. - reads it from stdin. `probe tables` lists the tables. Of several statements, the
    result of the last one is shown. A single SELECT over a job on this host is answered by the server beside it.

    SQL has your rights: COPY, ATTACH and read_text reach your files, so do not run what others send you.

    \b
    Example:
      probe 4242 query "SELECT module, stage, AVG(duration)
                        FROM python.torch_trace GROUP BY ALL ORDER BY 3 DESC LIMIT 5"
      probe 4242 query --format csv -f slow.sql
      probe 4242 query --timeout 3 --min-ranks 500 "SELECT * FROM probe.agents"
    """
    endpoint, sql = endpoint_and_text(endpoints, words, file, "SQL")
    query(endpoint, sql, output, timeout=timeout, explain=explain, open_steps=open_steps, min_ranks=min_ranks,
          max_fetch=max_fetch)  # fmt: skip
