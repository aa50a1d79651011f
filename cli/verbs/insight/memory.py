"""`probe ENDPOINT memory`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from probe.text import title

from ...options import Verb, endpoint_argument
from ...output.formats import Output, output_options
from ...output.result import Records
from ...session import connected, say

if TYPE_CHECKING:
    from probe.derive.rank_memory import RankMemory

COLUMNS = ("mb", "tensors", "kind", "holder", "module")
_SHOWN = 20
_WAIT_S = 10.0
_MB = 1e6


@click.command("memory", cls=Verb)
@endpoint_argument
@click.option("--diff", is_flag=True, help="Show what has grown since the last look, whoever took it.")
@click.option("--wait", type=click.FloatRange(0, 600), metavar="SECONDS", default=_WAIT_S, show_default=True,
              help="How long to wait for the end of a step; 0 looks at once.")  # fmt: skip
@output_options
def command(endpoint: str | None, diff: bool, wait: float, output: Output) -> None:
    """Show who holds the memory: every tensor by its holder.

    It looks between two steps, which holds the job for some 100 ms, and lists each storage of tensors once, with the
    variable, parameter or graph that keeps it alive. Items of a list and parameters of a model are shown as one line,
    and ranks are added up; python.tensor_trace has a row for each. What is not listed is told as a number of bytes.
    Between two steps means at the end of an iteration of the training loop: if none comes in time, it looks at once,
    and leaves out gradients and what graphs hold.

    \b
    Example:
      probe 4242 memory
      probe 4242 memory --diff
      probe 4242 query "SELECT module, SUM(bytes) FROM python.tensor_trace
                        WHERE kind = 'activation' GROUP BY 1 ORDER BY 2 DESC"
    """
    from probe.derive.rank_memory import folded, growth

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
    """`Looked at rank 0 for 87 ms: 142 tensors with 45.2 MB. Not listed: 15.1 MB on cpu.`"""
    held = max(max(each.pieces_s, default=0.0) for each in ranks)
    pieces = max(len(each.pieces_s) for each in ranks)
    times = f", at {pieces} boundaries" if pieces > 1 else ""
    tensors, size = sum(len(each.tensors) for each in ranks), sum(each.bytes for each in ranks)
    who = title(sorted(each.rank for each in ranks))
    yield f"Looked at {who} for {1000 * held:.0f} ms{times}: {tensors} tensors with {size / _MB:.1f} MB"
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
    grown = sum(now.unlisted.get("cpu", 0) - then.unlisted.get("cpu", 0) for now, then in compared)
    yield f"Since the last look, {steps} steps ago, what is not listed on cpu has grown by {grown / _MB:.1f} MB"
