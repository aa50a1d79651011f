"""`probe ENDPOINT memory`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

import click

from probe.errors import OutputError, UsageError
from probe.text import span, title

from ...evaluating import seconds as in_words
from ...options import Verb, endpoint_argument
from ...output.formats import Output, output_options, writable_file
from ...output.result import Records
from ...session import connected, say, say_missing

if TYPE_CHECKING:
    from probe.memory.histories import RankHistory
    from probe.memory.rank_memory import RankMemory

COLUMNS = ("mb", "tensors", "kind", "holder", "module")
_SHOWN = 20
_WAIT_S = 10.0
_MB = 1e6
_SECONDS, _MOST_SECONDS = 10.0, 120.0
LINES = ("mb", "left_mb", "allocations", "mean_ms", "function", "where")
SQL = """SELECT SUM(bytes) / 1e6 AS mb, SUM(bytes) FILTER (duration IS NULL) / 1e6 AS left_mb, COUNT(*) AS allocations,
1e3 * AVG(duration) AS mean_ms, function, parse_filename(file) || ':' || line AS "where" FROM python.allocation_trace
WHERE action = 'alloc' AND rank IN ({}) GROUP BY ALL ORDER BY left_mb DESC NULLS LAST, mb DESC"""


@click.command("memory", cls=Verb)
@endpoint_argument
@click.option("--diff", is_flag=True, help="Show what has grown since the last look, whoever took it.")
@click.option("--wait", type=click.FloatRange(0, 600), metavar="SECONDS", default=_WAIT_S, show_default=True,
              help="How long to wait for the end of a step; 0 looks at once.")  # fmt: skip
@click.option("--history", is_flag=True, help="Record what the allocators of CUDA devices do for a while instead.")
@click.option("--seconds", type=click.FloatRange(0.1, _MOST_SECONDS), metavar="SECONDS",
              help=f"How long to record.  [default: {_SECONDS:g}]")  # fmt: skip
@click.option("--steps", type=click.IntRange(1, 1000), metavar="N", help="Record N steps instead.")
@click.option("--snapshot", type=click.Path(dir_okay=False), metavar="FILE", default="",
              callback=writable_file, help="Write the history there too, for pytorch.org/memory_viz.")  # fmt: skip
@output_options
def command(
    endpoint: str | None, diff: bool, wait: float, history: bool, seconds: float | None, steps: int | None,
    snapshot: str, output: Output,
) -> None:  # fmt: skip
    """Show who holds the memory: every tensor by its holder.

    It looks between two steps, which holds the job for some 100 ms, and lists each storage of tensors once, with the
    variable, parameter or graph that keeps it alive. Items of a list and parameters of a model are shown as one line,
    and ranks are added up; python.tensor_trace has a row for each. What is not listed is told as a number of bytes.
    Between two steps means at the end of an iteration of the training loop: if none comes in time, it looks at once,
    and leaves out gradients and what graphs hold.

    With --history torch records each allocation on CUDA devices, with its Python stack, and each free. Shown are the
    lines that allocated, those first whose memory was not freed meanwhile (left_mb); what was done is rows of
    python.allocation_trace until detach.

    \b
    Example:
      probe 4242 memory
      probe 4242 memory --diff
      probe 4242 memory --history --steps 3 --snapshot mine.pickle
      probe 4242 query "SELECT module, SUM(bytes) FROM python.tensor_trace
                        WHERE kind = 'activation' GROUP BY 1 ORDER BY 2 DESC"
    """
    if history:
        _history(endpoint, seconds, steps, snapshot, output)
        return
    if seconds or steps or snapshot:
        raise UsageError("--seconds, --steps and --snapshot are for --history.", "Run: probe memory --help")
    from probe.memory.rank_memory import folded, growth

    with connected(endpoint) as connection:
        ranks = connection.memory(wait)
        unreached = connection.unreached
    for line in (*_summary(ranks), *(each.why for each in unreached), *(_compared(ranks) if diff else ())):
        say(f"{line.rstrip('.')}.")
    groups = growth(ranks) if diff else folded(ranks)
    if output.is_default:
        groups = groups[:_SHOWN]
    rows = [(round(each.bytes / _MB, 3), each.tensors, each.kind, each.holder, each.module) for each in groups]
    output.show(Records(COLUMNS, rows))


def _summary(ranks: Sequence[RankMemory]) -> Iterator[str]:
    """`Looked at rank 0 for 87 ms: 142 tensors with 45.2 MB`, or `for 150, 143, 90 ms, at 3 boundaries: …`"""
    held = [f"{1000 * max(piece):.0f}" for piece in zip_longest(*(each.pieces_s for each in ranks), fillvalue=0.0)]
    times = f", at {len(held)} boundaries" if len(held) > 1 else ""
    tensors, size = sum(len(each.tensors) for each in ranks), sum(each.bytes for each in ranks)
    who = title(sorted(each.rank for each in ranks))
    yield f"Looked at {who} for {', '.join(held)} ms{times}: {tensors} tensors with {size / _MB:.1f} MB"
    for device in sorted({device for each in ranks for device in each.unlisted}):
        unlisted = sum(each.unlisted.get(device, 0) for each in ranks)
        source = (
            "the C library gave out, for whatever it is" if device == "cpu" else f"the allocator of {device} gave out"
        )
        yield f"Not listed: {unlisted / _MB:.1f} MB of what {source}"
    for note in sorted({note for each in ranks for note in each.notes}):
        who = title(sorted(each.rank for each in ranks if note in each.notes))
        yield f"{who}: {note}"


def _compared(ranks: Sequence[RankMemory]) -> Iterator[str]:
    compared = [(each, each.before) for each in ranks if each.before is not None]
    if not compared:
        yield "This was the first look: there is nothing to compare with. Run the same command again in a while"
        return
    steps = max(now.count - then.count for now, then in compared)
    known = [(now, then) for now, then in compared if "cpu" in now.unlisted and "cpu" in then.unlisted]
    if not known:  # another library than the C library gives it out
        yield f"The last look was {steps} steps ago"
        return
    grown = sum(now.unlisted["cpu"] - then.unlisted["cpu"] for now, then in known)
    of = "" if len(known) == len(ranks) else f" of {title(sorted(now.rank for now, _ in known))}"
    yield f"Since the last look, {steps} steps ago, what is not listed on cpu{of} has grown by {grown / _MB:.1f} MB"


def _history(endpoint: str | None, seconds: float | None, steps: int | None, path: str, output: Output) -> None:
    if seconds and steps:
        raise UsageError("--seconds and --steps exclude each other.", "Run: probe memory --help")
    with connected(endpoint) as connection:
        taken = connection.history(_MOST_SECONDS if steps else seconds or _SECONDS, steps=steps or 0)
        unreached = connection.unreached
        sql = SQL.format(", ".join(str(each.rank) for each in taken))
        result = connection.query(sql, open_steps=True)
    rows = [tuple(row[name] for name in LINES) for row in result.to_pylist()]
    for line in (*_recorded(taken), *(each.why for each in unreached)):
        say(f"{line.rstrip('.')}.")
    say_missing(result)
    if path:
        _write(taken, Path(path))
    if output.is_default:
        rows = [(*(each and round(each, 3) for each in row[:4]), *row[4:]) for row in rows[:_SHOWN]]
    output.show(Records(LINES, rows))


def _recorded(taken: Sequence[RankHistory]) -> Iterator[str]:
    """`Recorded steps 7-9 of rank 0: 1204 entries. Torch then kept the GIL for 12 ms`"""
    steps = sorted({step for each in taken for step in range(each.first_step, each.first_step + max(1, each.steps))})
    entries = sum(len(trace) for each in taken for trace in each.snapshot["device_traces"])
    where = f"{'step' if len(steps) == 1 else 'steps'} {span(steps)} of {title([each.rank for each in taken])}"
    yield f"Recorded {where}: {entries} entries. Torch then kept the GIL for {in_words(max(e.held_s for e in taken))}"
    for each in taken:
        if each.why:
            yield f"rank {each.rank}: it ended after {each.steps} steps: {each.why}"


def _write(taken: Sequence[RankHistory], path: Path) -> None:
    """A file for each rank, named by it if there are several."""
    import pickle

    for each in taken:
        file = path if len(taken) == 1 else path.with_suffix(f".rank{each.rank}{path.suffix}")
        try:
            file.write_bytes(pickle.dumps(each.snapshot))
        except OSError as error:
            raise OutputError(f"{file}: {error.strerror}.") from None
        say(f"history of rank {each.rank}: {file}")
