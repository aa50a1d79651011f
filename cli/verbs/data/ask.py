"""`probe ENDPOINT ask [QUESTION]`."""

from __future__ import annotations

from collections.abc import Sequence

import click

from probe.errors import UsageError

from ...offers import words as offered
from ...options import Verb, endpoint_and_word, endpoint_option, no_server_option, timeout_option
from ...output.formats import Output, limited_output_options
from ...querying import query
from ...questions import NAMES, listed, read
from ...session import say, wrapped


@click.command("ask", cls=Verb)
@click.argument("words", nargs=-1, metavar="[QUESTION]", shell_complete=offered(NAMES))
@click.option("--sql", "only_sql", is_flag=True, help="Show the question's SQL instead of asking it.")
@endpoint_option
@timeout_option(10.0)
@no_server_option
@limited_output_options
def command(words: Sequence[str], only_sql: bool, endpoints: Sequence[str], timeout: float, output: Output) -> None:
    """Ask a question that has a name.

    Without a QUESTION, list them. The docs show all of them with an answer, in cookbook.md. To ask another one, change
    the SQL of the nearest.

    \b
    Example:
      probe ask
      probe 4242 ask loader
      probe ask loader --sql > loader.sql
    """
    endpoint, name = endpoint_and_word(endpoints, words, "question")
    if not name:
        if only_sql:
            raise UsageError("No question was given.", "For example: probe ask loader --sql")
        output.write(listed())
        if output.is_default:
            say(f"Ask one of a job: probe {endpoint or 'PID'} ask loader")
        return
    question = read(name)
    if only_sql:
        with output.opened() as sink:
            sink.write(f"{question.sql}\n".encode())
        return
    query(endpoint, question.sql, output, timeout=timeout, of_one_job=True)
    if output.is_default:
        say(f"\n{wrapped(question.title)}\n{wrapped(question.text)}")
