"""`probe ENDPOINT stragglers`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from ..options import Verb, endpoint_option, one_endpoint
from ..output.formats import check, format_options, show
from ..output.result import Records
from ..session import connected

if TYPE_CHECKING:
    from probe.diagnose.stragglers import Straggler, Stragglers

COLUMNS = ("rank", "late_ms", "late_pct", "late_steps", "steps", "last_pct", "confidence", "is_late", "spends")


@click.command("stragglers", cls=Verb)
@click.argument("words", nargs=-1, metavar="")
@endpoint_option
@click.option("--steps", type=click.IntRange(8, 100_000), default=100, show_default=True,
              help="How many of the last steps to look at.")  # fmt: skip
@format_options
def command(words: Sequence[str], endpoints: Sequence[str], steps: int, form: str | None, output: str | None) -> None:
    """Say which ranks the others wait for.

    A rank is late by what it does longer in a step than the median of the others, waiting for collectives left out.
    Who is late by more than 2 % of a step is named, once that can hardly be chance, with what it spends the time on:
    phase, module or loader, and whether it waits for a core. last_pct: of the collectives, those it came last to.

    \b
    Example:
      probe 4242 stragglers
      probe 4242 stragglers --steps 30 --format json
    """
    check(form, output)
    endpoint = one_endpoint(endpoints, words)
    with connected(endpoint) as connection:
        found = connection.stragglers(steps)
    if form is None and output is None:
        for line in _verdict(found):
            click.echo(line)
        click.echo()
    shown = [_row(each, found.steps) for each in found.ranks]
    show(Records(COLUMNS, shown), form, output) if form or output else show(_short(found), form, output)


def _verdict(found: Stragglers) -> Iterator[str]:
    over = f"over {found.steps} steps of {found.step_s * 1e3:.1f} ms"
    if not found.late:
        yield f"No rank is late, {over}."
    for each in found.findings:
        yield each.sentence
        yield from (f"  {line}" for line in each.why)


def _row(each: Straggler, steps: int) -> tuple[object, ...]:
    late = each.late
    figures = (late.late_s * 1e3, late.late_pct, late.steps, steps, each.last_pct, late.confidence, late.is_late)
    return (late.rank, *figures, "; ".join(each.spends))


def _short(found: Stragglers) -> Records:
    """Without what the verdict has said, in figures that one can read."""
    rows = []
    for each in found.ranks:
        late, last = each.late, each.last_pct
        rows.append((late.rank, round(late.late_s * 1e3, 2), round(late.late_pct, 1), late.steps,
                     None if last is None else round(last, 1), round(late.confidence, 3)))  # fmt: skip
    return Records(("rank", "late_ms", "late_pct", "late_steps", "last_pct", "confidence"), rows)
