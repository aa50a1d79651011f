"""`probe ENDPOINT profile`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from probe.errors import UsageError
from probe.text import title

from ...options import Verb, endpoint_argument, ranks_option
from ...output.formats import Output, output_options
from ...output.result import Records
from ...session import connected, say, say_missing, say_overwritten

if TYPE_CHECKING:
    from probe.profile.launch import RankProfile

COLUMNS = ("self_pct", "self_s", "total_s", "function", "where", "mostly")
_SHOWN = 20
_SECONDS, _MOST_SECONDS = 10.0, 3600.0


@click.command("profile", cls=Verb)
@endpoint_argument
@click.option("--seconds", type=click.FloatRange(0.1, _MOST_SECONDS), metavar="SECONDS",
              help=f"How long to look.  [default: {_SECONDS:g}]")  # fmt: skip
@click.option("--steps", type=click.IntRange(1, 1_000_000), metavar="N", help="Run for N steps instead.")
@click.option("--rate", type=click.FloatRange(1, 1000), metavar="HZ", default=100.0, show_default=True,
              help="How often to look at each thread, per second.")  # fmt: skip
@ranks_option
@output_options
def command(
    endpoint: str | None, seconds: float | None, steps: int | None, rate: float, ranks: list[int] | None, output: Output
) -> None:
    """Show the Python functions that the time goes into.

    It reads the stacks of all threads from outside: the job is not stopped, and its GIL is not needed. self_s is the
    time in which the main thread stood in a function of the job's own code or in a library that it had called; total_s
    the time in which the function was in the stack; mostly is the line of it that took most, and the library function
    that it had called there. Ranks are added up. Every sample, of all threads, is a row of
    python.profile until detach.

    \b
    Example:
      probe 4242 profile
      probe 4242 profile --steps 20 --rate 200
      probe 4242 query "SELECT thread_name, function, SUM(seconds)
                        FROM python.profile GROUP BY ALL ORDER BY 3 DESC LIMIT 9"
    """
    if seconds and steps:
        raise UsageError("--seconds and --steps exclude each other.", "Run: probe profile --help")
    from probe.profile.summary import KEPT, hottest, rows_of

    with connected(endpoint) as connection:
        limit = _MOST_SECONDS if steps else seconds or _SECONDS
        taken = connection.profile(limit, steps=steps or 0, rate=rate, ranks=ranks)
        unreached = connection.unreached
        result = connection.query(rows_of(taken), open_steps=True)
        kept = {row["rank"]: row["kept"] for row in connection.query(KEPT).to_pylist()}
    found = hottest(result.to_pylist())
    say(_summary(taken))
    for each in unreached:
        say(f"{each.why}.")
    say_missing(result)
    left = {each.rank: (kept[each.rank], each.samples) for each in taken if each.rank in kept}
    say_overwritten({rank: each for rank, each in left.items() if each[0] < each[1]}, "samples", "the times are of")
    rows = [(hot.self_pct, hot.self_s, hot.total_s, hot.function, hot.where, hot.mostly) for hot in found]
    if output.is_default:
        rows = [(round(row[0], 1), round(row[1], 2), round(row[2], 2), *row[3:]) for row in rows[:_SHOWN]]
    output.show(Records(COLUMNS, rows))


def _summary(taken: Sequence[RankProfile]) -> str:
    """`Looked at rank 0 for 10.0 s, 998 times: 1996 stacks of its threads, of which 0.1 % could not be read.`"""
    seconds = max(each.end_ns - each.start_ns for each in taken) / 1e9
    samples, lost = sum(each.samples for each in taken), sum(each.not_read for each in taken)
    share = f", of which {100 * lost / samples:.1f} % could not be read" if lost else ""
    times = f"{min(each.looks for each in taken)} times" + " each" * (len(taken) > 1)
    ranks = title(sorted(each.rank for each in taken))
    return f"Looked at {ranks} for {seconds:.1f} s, {times}: {samples} stacks of threads{share}."
