"""`probe ENDPOINT names [PATTERN]`."""

from __future__ import annotations

from collections.abc import Sequence

import click

from ...options import Verb, endpoint_and_word, endpoint_option
from ...output.formats import Output, output_options
from ...output.result import Records
from ...session import connected

COLUMNS = ("name", "type", "shape", "device", "value", "where")


@click.command("names", cls=Verb)
@click.argument("words", nargs=-1, metavar="[PATTERN]")
@click.option("--rank", type=int, default=0, show_default=True, help="Rank to look at.")
@click.option("--frame", metavar="FUNCTION", default="", help="Function, or number of a frame, whose names to list.")
@click.option("--now", is_flag=True, help="At once, beside the training, instead of between two steps.")
@endpoint_option
@output_options
def command(words: Sequence[str], rank: int, frame: str, now: bool, endpoints: Sequence[str], output: Output) -> None:
    """List the names that eval can see.

    With a PATTERN such as *loader*, optimizer or *step*|*iter*, those that match, and attributes one level inside them.

    \b
    Example:
      probe 4242 names
      probe 4242 names "*loader*"
      probe 4242 names --frame Trainer._inner_training_loop
    """
    endpoint, pattern = endpoint_and_word(endpoints, words, "pattern")
    with connected(endpoint) as connection:
        found = connection.names(pattern, rank=rank, frame=frame, now=now)
    output.show(Records(COLUMNS, [tuple(each[column] for column in COLUMNS) for each in found]))
