"""`probe ENDPOINT capture`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from probe.text import span, title

from ...evaluating import seconds
from ...options import Verb, endpoint_argument
from ...output.formats import Output, format_option
from ...output.result import Records
from ...session import connected, say

if TYPE_CHECKING:
    from probe.capture.capture import RankCapture

COLUMNS = ("self_pct", "self_s", "device_s", "calls", "operator")
SQL = """WITH seen AS (FROM python.op_trace WHERE start_ns BETWEEN {} AND {} AND NOT annotation)
SELECT 100 * SUM(duration) / (SELECT SUM(duration) FROM seen) AS self_pct, SUM(duration) AS self_s,
SUM(device_duration) AS device_s, COUNT(*) AS calls, operator FROM seen GROUP BY operator ORDER BY self_s DESC"""
_SHOWN = 20


@click.command("capture", cls=Verb)
@endpoint_argument
@click.option("--steps", type=click.IntRange(1, 100), metavar="N", default=3, show_default=True,
              help="How many whole steps.")  # fmt: skip
@click.option("-o", "--out", "folder", type=click.Path(file_okay=False), metavar="DIR", default="",
              help="Write each rank's trace there, for Perfetto or chrome://tracing.")  # fmt: skip
@click.option("--shapes", is_flag=True, help="With the shapes of operators, their FLOPs and bytes; costs more.")
@format_option
def command(endpoint: str | None, steps: int, folder: str, shapes: bool, output: Output) -> None:
    """Run torch's profiler over some steps of all ranks.

    It is switched on and off between two steps, at the same ones on all ranks. Every operator becomes a row of
    python.op_trace, what ran on devices a row of python.kernel_trace, until detach. Shown are the operators by their
    own time on the host, all ranks added up. Captured steps take longer, and the job stands while torch collects what
    it has seen, which is told at the end.

    \b
    Example:
      probe 4242 capture
      probe 4242 capture --steps 1 -o traces
      probe 4242 query "SELECT module, operator, SUM(duration)
                        FROM python.op_trace GROUP BY ALL ORDER BY 3 DESC LIMIT 9"
    """
    with connected(endpoint) as connection:
        taken = connection.capture(steps, shapes=shapes, folder=folder, on_output=_on_output)
        window = min(each.start_ns for each in taken), max(each.end_ns for each in taken)
        result = connection.query(SQL.format(*window), open_steps=True)
    say(_summary(taken))
    for each in taken:
        if each.why:
            say(f"rank {each.rank}: it ended after {each.steps} of {steps} steps: {each.why}")
    rows = [tuple(row[name] for name in COLUMNS) for row in result.to_pylist()]
    if output.is_default:
        rows = [(round(row[0], 1), round(row[1], 4), row[2], *row[3:]) for row in rows[:_SHOWN]]
    output.show(Records(COLUMNS, rows))
    for each in taken:
        if each.path:
            say(f"trace of rank {each.rank}: {each.path}")


def _on_output(ranks: list[int], stream: str, text: str) -> None:
    if stream == "waiting":
        say(text.rstrip("\n"))


def _summary(taken: Sequence[RankCapture]) -> str:
    """`Captured steps 7-9 of ranks 0-1: 2884 operators, 0 kernels. Training stood 0.2 s; torch then held the GIL …`"""
    steps = sorted({step for each in taken for step in range(each.first_step, each.first_step + each.steps)})
    operators, kernels = sum(each.operators for each in taken), sum(each.kernels for each in taken)
    held, export = max(each.held_s for each in taken), max(each.export_s for each in taken)
    grown = max(each.grown_bytes for each in taken) / (1 << 20)
    where = f"{'step' if len(steps) == 1 else 'steps'} {span(steps)} of {title(sorted(each.rank for each in taken))}"
    return (
        f"Captured {where}: {operators} operators, {kernels} kernels. Training stood {seconds(held)}; torch then held "
        f"the GIL for {seconds(export)} to write the trace. The process is {grown:.0f} MB larger."
    )
