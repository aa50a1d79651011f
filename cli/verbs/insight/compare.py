"""`probe compare A B`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from probe.errors import FoundError, UsageError

from ...offers import endpoints as offered
from ...options import endpoint_option
from ...output.formats import json_option
from ...output.parts import show_parts
from ...session import cancelled_by_signals, connect, say_note

if TYPE_CHECKING:
    from probe.diagnose.compare.limits import Limit
    from probe.diagnose.compare.report import Compared


@click.command("compare")
@click.argument("words", nargs=-1, metavar="A B", shell_complete=offered)
@endpoint_option
@click.option("--runs-differ", type=click.FloatRange(0, 100), metavar="PERCENT", default=1.0, show_default=True,
              help="By how much runs of one job are assumed to differ, with fewer than three runs a side.")  # fmt: skip
@click.option("--fail-if", "limits", multiple=True, metavar="LIMIT",
              help='Exit with status 11 if a change is beyond it for certain: "step_time > 5%".')  # fmt: skip
@json_option("Print the comparison as one JSON object.")
def command(
    words: Sequence[str], endpoints: Sequence[str], runs_differ: float, limits: Sequence[str], as_json: bool
) -> None:
    """Say what differs between two runs, or stretches of one.

    A and B are endpoints, with @FIRST..LAST for some of their steps; a folder of several recorded jobs is a side of
    several runs. Throughput, phases, modules, collectives and memory are compared with intervals, the dearest
    difference first, beside findings of why and settings. What chance explains is no difference.

    \b
    Example:
      probe compare 4242@100..400 4242@500..800
      probe compare runs/job=before runs/job=after
      probe compare before/ after/ --fail-if "step_time > 5%" --fail-if "rss_mb > 200MB"
    """
    given = [*endpoints, *words]
    if len(given) != 2:
        raise UsageError(f"compare takes two sides, not {len(given)}.", "For example: probe compare runs/a runs/b")
    from probe.comparing import Opening
    from probe.diagnose.compare.compare import compare
    from probe.diagnose.compare.limits import Limit

    wanted = [Limit.of(text) for text in limits]
    opening = Opening(lambda endpoint: connect(endpoint, 10.0))
    with opening, cancelled_by_signals(opening.cancel):
        compared = compare(*opening.sides(*given), runs_differ / 100)
        for note in opening.notes:
            say_note(note)
    if as_json:
        click.echo(json.dumps(compared.as_json()))
    else:
        show_parts(compared.parts())
    _fail(compared, wanted)


def _fail(compared: Compared, limits: Sequence[Limit]) -> None:
    if beyond := [limit.text for limit in limits if limit.is_exceeded(compared)]:
        raise FoundError(f"Beyond the limit: {'; '.join(beyond)}.", code="changed")
