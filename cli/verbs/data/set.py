"""`probe ENDPOINT set`."""

from __future__ import annotations

from collections.abc import Sequence

import click

from probe.errors import SilentError
from probe.settings import WRITTEN, from_words

from ...offers import words as offered
from ...options import Verb, endpoint_option, one_endpoint
from ...output.formats import Output, output_options
from ...output.result import Records
from ...session import connected, say

COLUMNS = ("rank", "sample", "every", "budget_pct", "backward", "sampled_step_cost_us")


@click.command("set", cls=Verb)
@click.argument("words", nargs=-1, metavar="[NAME=VALUE]...", shell_complete=offered([f"{name}=" for name in WRITTEN]))
@endpoint_option
@output_options
def command(words: Sequence[str], endpoints: Sequence[str], output: Output) -> None:
    """Show or change how steps are sampled and counted.

    Modules are recorded in blocks of ten steps: with sample=1 in every block, with sample=N in one of N blocks (N
    is 2, 4, 8, … 128, or is taken as the next of these), with sample=auto in as many as keep the overhead under the
    budget. for=STEPS records at least one of N blocks for so many steps; then it is as before, as it is once sample is
    set without for. Which block that is follows no period. With backward=off the modules' backward is not recorded:
    the whole pass is then one row, the root's. A change holds from the next step on; a process that only calls modules,
    such as a server, has none, and every call is recorded until detach. sampled_step_cost_us is what one sampled step
    costs; probe.overhead has the cost of it all.

    Where no optimizer, trainer or scheduler keeps a count, and ranks cannot be aligned, steps are counted from the
    attach. step=NAME counts them by a variable of the job, as eval sees it: the step that has just ended gets its
    value. step= alone looks for such a variable.

    \b
    Example:
      probe 4242 set
      probe 4242 set sample=1
      probe 4242 set sample=1 for=200
      probe 4242 set sample=auto budget=0.5% backward=off
      probe 4242 set step=global_step
    """
    rest = [word for word in words if "=" not in word and word not in WRITTEN]
    changes = from_words([word for word in words if word not in rest])
    with connected(one_endpoint(endpoints, rest)) as connection:
        settings = connection.set(**changes)
    rows = []
    for one in settings:
        cost_us = None if one["cost_ns"] is None else one["cost_ns"] / 1000
        rows.append((one["rank"], str(one["sample"]), one["every"], one["budget_pct"], one["backward"], cost_us))
    output.show(Records(COLUMNS, rows))
    if changes:
        say("from the next step on")
        if connection.unreached:
            raise SilentError(f"{len(connection.unreached)} of the ranks did not change.", "Run set again later.")
