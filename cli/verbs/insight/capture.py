"""`probe ENDPOINT capture`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from probe.text import span, title

from ...evaluating import seconds
from ...options import Verb, endpoint_argument, ranks_option
from ...output.formats import Output, format_options
from ...output.result import Records
from ...session import connected, say, say_missing

if TYPE_CHECKING:
    from probe.capture.capture import RankCapture

COLUMNS = ("self_pct", "self_s", "device_s", "calls", "operator")
SQL = """WITH seen AS (FROM python.op_trace WHERE NOT annotation AND ({}))
SELECT 100 * SUM(duration) / (SELECT SUM(duration) FROM seen) AS self_pct, SUM(duration) AS self_s,
SUM(device_duration) AS device_s, COUNT(*) AS calls, operator FROM seen GROUP BY operator ORDER BY self_s DESC"""
_SHOWN = 20
_SILENT = "Another profiler may occupy it, or the job's first torch.profiler was for the CPU alone."
MODULES = ("pct", "seconds", "known_pct", "gflops_s", "gbps", "peak_pct", "bound", "stage", "module")
# of a group whose kernels were overwritten, known_pct is NULL: what it took is not known
MODULES_SQL = """WITH seen AS (SELECT *, CASE WHEN processor IS NULL OR known_pct IS NOT NULL
THEN COALESCE(device_duration, duration) END AS took, took * known_pct / 100 AS known FROM python.module_cost WHERE {})
SELECT 100 * SUM(took) / (SELECT SUM(took) FROM seen) AS pct, SUM(took) AS seconds,
100 * SUM(known) / SUM(took) AS known_pct, SUM(flops) FILTER (known >= 0) / SUM(known) / 1e9 AS gflops_s,
SUM(bytes) FILTER (known >= 0) / SUM(known) / 1e9 AS gbps, 100 * SUM(peak_share * known) / SUM(known) AS peak_pct,
MODE(bound) AS bound, stage, module FROM seen GROUP BY stage, module ORDER BY seconds DESC"""
NO_PEAK = """SELECT DISTINCT processor FROM python.module_cost WHERE flops IS NOT NULL AND peak_source IS NULL
AND processor IS NOT NULL AND ({}) ORDER BY processor"""


@click.command("capture", cls=Verb)
@endpoint_argument
@click.option("--steps", type=click.IntRange(1, 100), metavar="N", default=3, show_default=True,
              help="How many whole steps.")  # fmt: skip
@click.option("-o", "--out", "folder", type=click.Path(file_okay=False), metavar="DIR", default="",
              help="Write each rank's trace there, for Perfetto or chrome://tracing.")  # fmt: skip
@ranks_option
@click.option("--shapes", is_flag=True, help="With the shapes of operators, their FLOPs and bytes; costs more.")
@format_options()
def command(
    endpoint: str | None, steps: int, folder: str, ranks: list[int] | None, shapes: bool, format: str | None
) -> None:
    """Run torch's profiler over some steps of all ranks.

    It is switched on and off between two steps, at the same ones on all ranks. Every operator becomes a row of
    python.op_trace, what ran on devices a row of python.kernel_trace, until detach. Shown are the operators by their
    own time on the host, all ranks added up. Captured steps take longer, and the job stands while torch collects what
    it has seen, which is told at the end. With --shapes, the modules are shown, too (unless --format is given), and
    what bounds them: arithmetic, memory, launching or overhead (python.module_cost). Bytes are those of the operators'
    tensors: more than memory moves, where caches save some.

    \b
    Example:
      probe 4242 capture
      probe 4242 capture --steps 1 --shapes --rank 0 -o traces
      probe 4242 query "SELECT module, operator, SUM(duration)
                        FROM python.op_trace GROUP BY ALL ORDER BY 3 DESC LIMIT 9"
    """
    output = Output(format)
    with connected(endpoint) as connection:
        taken = connection.capture(steps, shapes=shapes, folder=folder, ranks=ranks, on_output=_on_output)
        rows = rows_of(taken)
        result = connection.query(SQL.format(rows), open_steps=True)
        modules = connection.query(MODULES_SQL.format(rows), open_steps=True) if shapes else None
        unknown = connection.query(NO_PEAK.format(rows), open_steps=True) if shapes else None
    say(_summary(taken))
    say_missing(result)
    for each in taken:
        if each.why:
            say(f"rank {each.rank}: it ended after {each.steps} of {steps} steps: {each.why}")
        if each.kernels is None:
            say(f"rank {each.rank}: kernels are unknown: CUPTI tells nothing. {_SILENT}")
    operators = [tuple(row[name] for name in COLUMNS) for row in result.to_pylist()]
    if output.is_default:
        operators = [(round(row[0], 1), round(row[1], 4), row[2], *row[3:]) for row in operators[:_SHOWN]]
    output.show(Records(COLUMNS, operators))
    if modules is not None and output.is_default:
        output.show(Records(MODULES, [_rounded(row) for row in modules.to_pylist()[:_SHOWN]]))
    for row in unknown.to_pylist() if unknown is not None else ():
        say(_no_peak(row["processor"]))
    for each in taken:
        if each.path:
            say(f"trace of rank {each.rank}: {each.path}")


def rows_of(taken: Iterable[RankCapture]) -> str:
    """The SQL condition for the rows of these captures, each of which has the clock of its host."""
    return " OR ".join(f"rank = {t.rank} AND start_ns BETWEEN {t.start_ns} AND {t.end_ns}" for t in taken)


def _rounded(row: dict[str, Any]) -> tuple[Any, ...]:
    """Of numbers three digits that count."""
    values = (row[name] for name in MODULES)
    return tuple(float(f"{value:.3g}") if isinstance(value, float) else value for value in values)


def _no_peak(processor: str) -> str:
    """Of a CPU the peak is that of its number of threads."""
    threads = re.search(r", (\d+) threads?$", processor)
    option = f" --threads {threads[1]}" if threads else ""
    return (
        f"No peak is known of {processor}, so neither is what bounds a module. Measure it once, while the machine is "
        f"idle: probe doctor --peak{option}"
    )


def _on_output(ranks: list[int], stream: str, text: str) -> None:
    if stream == "waiting":
        say(text.rstrip("\n"))


def _summary(taken: Sequence[RankCapture]) -> str:
    """`Captured steps 7-9 of ranks 0-1: 2884 operators, 0 kernels. Training stood 0.2 s; torch then held the GIL …`"""
    steps = sorted({step for each in taken for step in range(each.first_step, each.first_step + each.steps)})
    operators, kernels = sum(each.operators for each in taken), sum(each.kernels or 0 for each in taken)
    held, export = max(each.held_s for each in taken), max(each.export_s for each in taken)
    grown = max(each.grown_bytes for each in taken) / (1 << 20)
    where = f"{'step' if len(steps) == 1 else 'steps'} {span(steps)} of {title(sorted(each.rank for each in taken))}"
    return (
        f"Captured {where}: {operators} operators, {kernels} kernels. Training stood {seconds(held)}; torch then held "
        f"the GIL for {seconds(export)} to write the trace. The process is {grown:.0f} MB larger."
    )
