"""`probe ENDPOINT stragglers`."""

from __future__ import annotations

import click

from ...options import Verb, endpoint_argument
from ...output.formats import Output, output_options
from ...output.result import Records
from ...session import connected

COLUMNS = ("rank", "late_ms", "late_pct", "late_steps", "steps", "last_pct", "confidence", "is_late", "spends")
SHORT = ("rank", "late_ms", "late_pct", "late_steps", "last_pct", "confidence")


@click.command("stragglers", cls=Verb)
@endpoint_argument
@click.option("--steps", type=click.IntRange(8, 100_000), metavar="N", default=100, show_default=True,
              help="How many of the last steps to compare.")  # fmt: skip
@output_options
def command(endpoint: str | None, steps: int, output: Output) -> None:
    """Show which ranks the others wait for.

    Lateness is a rank's own work per step, without waiting for collectives, minus the median of the others. A rank that
    is late by more than 2 % of a step is named once that can hardly be chance, with where it spends the time: phase,
    module or loader, and whether it waits for a core. last_pct: the percentage of collectives that it reached last.

    \b
    Example:
      probe 4242 stragglers
      probe 4242 stragglers --steps 30 --format json
    """
    with connected(endpoint) as connection:
        found = connection.stragglers(steps)
    rows: list[tuple[object, ...]] = []
    for each in found.ranks:
        late, last = each.late, each.last_pct
        late_ms = late.late_s * 1e3
        if output.is_default:
            last = None if last is None else round(last, 1)
            rows.append((late.rank, round(late_ms, 2), round(late.late_pct, 1), late.steps, last,
                         round(late.confidence, 3)))  # fmt: skip
        else:
            rows.append((late.rank, late_ms, late.late_pct, late.steps, found.steps, last, late.confidence,
                         late.is_late, "; ".join(each.spends)))  # fmt: skip
    if output.is_default:
        if not found.late:
            click.echo(f"No rank is late, over {found.steps} steps of {found.step_s * 1e3:.1f} ms.")
        for finding in found.findings:
            click.echo("\n".join((finding.sentence, *(f"  {line}" for line in finding.why))))
        click.echo()
    output.show(Records(SHORT if output.is_default else COLUMNS, rows))
