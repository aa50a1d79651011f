"""`probe ENDPOINT set`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from probe.errors import SilentError
from probe.settings import from_words

from ..options import Verb, endpoint_option, one_endpoint
from ..output.formats import check, format_options, show
from ..output.result import Records
from ..session import connected, say

COLUMNS = ("rank", "sample", "every", "budget_pct", "backward", "sampled_step_cost_us")


@click.command("set", cls=Verb)
@click.argument("words", nargs=-1, metavar="[NAME=VALUE]...")
@endpoint_option
@format_options
def command(words: Sequence[str], endpoints: Sequence[str], form: str | None, output: str | None) -> None:
    """Show how steps are sampled, or change it.

    Module rows are taken in blocks of ten steps. sample=1 takes every block, sample=N every N-th (2, 5, 10, 20,
    50, 100), sample=auto as many as cost no more than the budget. backward=off leaves the modules' backward out:
    the whole pass is then one row, the root's. A change holds from the next step on; in a loop that steps no
    optimizer, as in inference, none does, and every call is recorded until detach. What it all costs is in
    probe.overhead.

    \b
    Example:
      probe 4242 set
      probe 4242 set sample=1
      probe 4242 set sample=auto budget=0.5% backward=off
    """
    check(form, output)
    changes = from_words([word for word in words if "=" in word])
    endpoint = one_endpoint(endpoints, [word for word in words if "=" not in word])
    with connected(endpoint) as connection:
        settings = connection.set(**changes)
    show(Records(COLUMNS, [_row(one) for one in settings]), form, output)
    if changes:
        say("from the next step on")
        if connection.unreached:
            raise SilentError(f"Not changed on {len(connection.unreached)} of the ranks.", "Run set again later.")


def _row(one: dict[str, Any]) -> tuple[Any, ...]:
    cost_us = None if one["cost_ns"] is None else one["cost_ns"] / 1000
    return one["rank"], str(one["sample"]), one["every"], one["budget_pct"], one["backward"], cost_us
