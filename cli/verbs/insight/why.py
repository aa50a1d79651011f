"""`probe ENDPOINT why`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from probe.errors import EndpointError, FoundError, SilentError, UsageError
from probe.text import nearest

from ...attaching import Wanted, attach_each, say_line
from ...choosing import ranks_of
from ...options import SECONDS, Verb, endpoint_argument
from ...output.formats import json_option
from ...output.parts import show_parts
from ...output.progress import progress
from ...session import connected, say

if TYPE_CHECKING:
    from probe.connection import Connection
    from probe.diagnose.diagnosis import Diagnosis

SEVERITIES = ("hint", "warning", "critical")
_LATEST = "step > (SELECT MAX(step) FROM python.step_trace) - 300"


@click.command("why", cls=Verb)
@endpoint_argument
@click.option("--seconds", type=SECONDS, metavar="SECONDS",
              help="How long to watch.  [default: 10 to 30, or 40 steps]")  # fmt: skip
@click.option("--leave", is_flag=True, help="Detach afterwards, if it had to attach.")
@click.option("--since-change", is_flag=True, help="What the last eval that changed something has brought.")
@click.option("--at", "at_step", type=click.IntRange(min=1), metavar="STEP",
              help="With --since-change: what came with this step.")  # fmt: skip
@click.option("--sql", "code", metavar="CODE", help="Print the SQL that shows such a finding.")
@click.option("--fail-on", type=click.Choice(SEVERITIES),
              help="Exit with status 11 if a finding is this severe or worse.")  # fmt: skip
@json_option("Print the diagnosis as one JSON object.")
def command(
    endpoint: str | None, seconds: float | None, leave: bool, since_change: bool, at_step: int | None,
    code: str | None, fail_on: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Say why a job is slow, and what to do about it.

    It attaches if need be, watches the job, and tells what costs most: the evidence, where in the code, the setting,
    the command that changes it, and what that should bring. A job that is stuck, compiles, idles or is well gets that
    verdict. --since-change compares the steps before and after the last change.

    \b
    Example:
      probe 4242 why
      probe 4242 why --sql input-bound
      probe 4242 why --since-change
      probe 4242 why --json --fail-on warning
    """
    if at_step is not None and not since_change:
        raise UsageError("--at needs --since-change.", "Run: probe why --help")
    if since_change and (beside := _beside_change(seconds, fail_on)):
        raise UsageError(f"--since-change judges no job: it does not go with {beside}.", "Run: probe why --help")
    if code is not None:
        click.echo(_sql(code))
        return
    attached = _attach(endpoint)
    with connected(endpoint) as connection:
        try:
            if since_change:
                _show_change(connection, at_step, as_json)
                return
            diagnosis = connection.why(seconds, progress=progress)
        finally:
            if leave and attached:
                _leave(connection)
    if as_json:
        click.echo(json.dumps(diagnosis.as_json()))
    else:
        show_parts(diagnosis.parts())
    _fail(diagnosis, fail_on)


def _beside_change(seconds: float | None, fail_on: str | None) -> str:
    """The options given that are of a diagnosis, in words."""
    given = {f"--seconds {seconds or 0:g}": seconds, f"--fail-on {fail_on}": fail_on}
    return " and ".join(option for option, value in given.items() if value is not None)


def _attach(endpoint: str | None) -> bool:
    """Attach to the ranks of a pid that has no agent; whether it was so."""
    if endpoint is None or not endpoint.isdecimal():
        return False
    from probe.client.endpoints import resolve

    try:
        resolve(endpoint)
        return False
    except EndpointError as error:
        if error.code != "not-attached":
            raise
    attach_each(ranks_of([int(endpoint)]), Wanted(tell=say_line))
    return True


def _leave(connection: Connection) -> None:
    """Detach, also after a Ctrl-C.  Raises SilentError if a rank was not reached."""
    connection.is_unwanted = lambda: False
    for what_stays in connection.detach():
        say(what_stays)
    if connection.unreached:
        reasons = "; ".join(each.why for each in connection.unreached)
        raise SilentError(f"Still attached: {reasons}.", "Run detach again later.")


def _sql(code: str) -> str:
    from probe.diagnose.rules import ON_TABLES

    known = {rule.code: rule.query(_LATEST) for rule in ON_TABLES if rule.query("")}
    if code not in known:
        raise UsageError(
            f"No finding with SQL is called {code!r}.",
            nearest(code, known) or f"There are: {', '.join(sorted(known))}.",
        )
    return known[code]


def _show_change(connection: Connection, at_step: int | None, as_json: bool) -> None:
    change = connection.since_change(at_step)
    click.echo(json.dumps(change.as_json()) if as_json else "\n".join(change.lines()))


def _fail(diagnosis: Diagnosis, fail_on: str | None) -> None:
    if fail_on is not None:
        bad = [each for each in diagnosis.findings if each.severity in SEVERITIES[SEVERITIES.index(fail_on) :]]
        if bad:
            raise FoundError(f"{len(bad)} finding{'s' * (len(bad) > 1)}: {', '.join(each.code for each in bad)}.")
