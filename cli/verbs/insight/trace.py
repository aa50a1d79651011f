"""`probe ENDPOINT trace`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from probe.errors import SilentError, UsageError

from ...options import Verb, endpoint_and_word, endpoint_option, ranks_option
from ...output.formats import Output, output_options
from ...output.result import Records
from ...session import connected, say, say_missing, say_overwritten

if TYPE_CHECKING:
    from probe.client.traces import RankTrace
    from probe.connection import Connection

_SQL = """SELECT rank, function, COUNT(*) AS calls, COUNT(*) FILTER (WHERE failed) AS failed,
quantile_cont(duration, 0.5) * 1e3 AS p50_ms, quantile_cont(duration, 0.9) * 1e3 AS p90_ms,
quantile_cont(duration, 0.99) * 1e3 AS p99_ms, MAX(duration) * 1e3 AS max_ms,
quantile_cont(queued, 0.5) * 1e3 AS queued_p50_ms, quantile_cont(queued, 0.99) * 1e3 AS queued_p99_ms
FROM python.call_trace WHERE {} GROUP BY ALL ORDER BY ALL"""
# Of ranks that have overwritten rows: when the first of the calls that are left ended, of whichever function.
_SINCE = """SELECT rank, MIN(start_ns + duration * 1e9) AS since_ns FROM python.call_trace
WHERE rank IN (SELECT rank FROM probe.drops WHERE stream = 'calls' AND dropped > 0) GROUP BY rank"""
COLUMNS = ("rank", "function", "calls", "calls_per_s", "failed", "p50_ms", "p90_ms", "p99_ms", "max_ms",
           "queued_p50_ms", "queued_p99_ms")  # fmt: skip
_SECONDS, _MOST_SECONDS = 10.0, 86_400.0


@click.command("trace", cls=Verb)
@click.argument("words", nargs=-1, metavar="[FUNCTION]")
@click.option("--seconds", type=click.FloatRange(0.1, _MOST_SECONDS), metavar="SECONDS", default=_SECONDS,
              show_default=True, help="How long to record calls.")  # fmt: skip
@click.option("--since", metavar="NAME", default="",
              help="Also record how long each call has waited. NAME is an argument, or an attribute or key of one, "
              "with a time stamp: time.time(), monotonic() or perf_counter().")  # fmt: skip
@click.option("--keep", is_flag=True, help="Leave it on, until --stop or detach.")
@click.option("--stop", is_flag=True, help="Take off all traces.")
@ranks_option
@endpoint_option
@output_options
def command(
    words: Sequence[str], seconds: float, since: str, keep: bool, stop: bool, ranks: list[int] | None,
    endpoints: Sequence[str], output: Output,
) -> None:  # fmt: skip
    """Record each call of one of the job's functions.

    FUNCTION is `module:function`, `module:Class.method`, `file.py:function` or a name that is unique in the job. Each
    call is a row of python.call_trace until detach: how long it took, whether it failed, the size of its first
    argument, and with --since how long it had waited. Functions that are called more than 20,000 times a second are
    refused.
    Without FUNCTION: what is traced now.

    \b
    Example:
      probe 4242 trace server:Handler.do_POST
      probe 4242 trace app:predict --since enqueued_at --seconds 60
      probe 4242 trace loader.py:collate --keep
      probe 4242 trace --stop
    """
    endpoint, function = endpoint_and_word(endpoints, words, "function")
    if function and stop:
        raise UsageError("--stop takes no FUNCTION.", "Run: probe trace --stop")
    if ranks is not None and not function:
        raise UsageError("--rank needs a FUNCTION.", "For example: probe trace app:predict --rank 0")
    with connected(endpoint) as connection:
        if not function:
            _show_all(connection, stop, output)
            return
        traces = connection.trace(function, seconds, since=since, keep=keep, ranks=ranks)
        unreached = connection.unreached
        ends = {each.rank: each.end_ns or each.start_ns + int(seconds * 1e9) for each in traces}
        result, name = connection.query(_SQL.format(_these(traces, ends)), open_steps=True), connection.endpoint
        rows = result.to_pylist()
        left = _left(connection, traces, rows)
    for each in unreached:
        say(f"{each.why}.")
    say_missing(result)
    lasted = {each.rank: (ends[each.rank] - each.start_ns) / 1e9 for each in traces}
    say_overwritten(left, "calls", "times and failures are of")
    found = [_figures(row, left, lasted[row["rank"]]) for row in rows]
    if not found and not left:
        say(f"{traces[0].function} has ended no call.")
    if output.is_default:
        found = [tuple(round(each, 3) if isinstance(each, float) else each for each in row) for row in found]
    output.show(Records(COLUMNS, found))
    if keep:
        say(f"{traces[0].function} is still traced. To end that: probe {name} trace --stop")


def _left(
    connection: Connection, traces: Sequence[RankTrace], rows: Sequence[Mapping[str, Any]]
) -> dict[int, tuple[int, int]]:
    """Of ranks some of whose calls have been overwritten: how many are left, of how many.  A call that still runs has
    no row either."""
    left = {each.rank: 0 for each in traces} | {row["rank"]: row["calls"] for row in rows}
    if not any(left[each.rank] < each.calls for each in traces):
        return {}
    since = {row["rank"]: row["since_ns"] for row in connection.query(_SINCE, open_steps=True).to_pylist()}
    return {
        each.rank: (left[each.rank], each.calls)
        for each in traces
        if left[each.rank] < each.calls and since.get(each.rank, 0) > each.start_ns
    }


def _figures(row: Mapping[str, Any], left: Mapping[int, tuple[int, int]], seconds: float) -> tuple[Any, ...]:
    """In the order of COLUMNS; of the calls that are left, but for how many there were."""
    _, calls = left.get(row["rank"], (0, row["calls"]))
    return tuple({**row, "calls": calls, "calls_per_s": calls / seconds}[name] for name in COLUMNS)


def _show_all(connection: Connection, stop: bool, output: Output) -> None:
    """What is traced now, or what was until it is stopped now.  Raises SilentError if not all ranks have answered."""
    traces = connection.stop_traces() if stop else connection.traces()
    columns = ("rank", "function", "calls", "file", "line")
    output.show(Records(columns, [tuple(getattr(each, name) for name in columns) for each in traces]))
    if missing := len(connection.unreached):
        raise SilentError(f"{missing} of the ranks did not answer.", f"Run trace{' --stop' * stop} again later.")


def _these(traces: Sequence[RankTrace], ends: Mapping[int, int]) -> str:
    """The condition for the rows of these traces alone, up to these times of each rank."""
    name = traces[0].function.replace("'", "''")
    windows = (f"rank = {each.rank} AND start_ns BETWEEN {each.start_ns} AND {ends[each.rank]}" for each in traces)
    return f"function = '{name}' AND ({' OR '.join(windows)})"
