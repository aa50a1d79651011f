"""`probe ENDPOINT hang`."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from probe.errors import HungError

from ..options import SECONDS, Verb, endpoint_option, one_endpoint
from ..session import connected

if TYPE_CHECKING:
    from probe.report import Report


@click.command("hang", cls=Verb)
@click.argument("words", nargs=-1, metavar="")
@endpoint_option
@click.option("--watch", type=SECONDS, metavar="SECONDS",
              help="Look until nothing has moved for so long, then report and fail.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="The report as one JSON object.")
def command(words: Sequence[str], endpoints: Sequence[str], watch: float | None, as_json: bool) -> None:
    """Say why the job does not go on: verdict, why, what next.

    It looks twice, a second apart: at what every rank waits for and does, who has not come to a collective, which
    calls do not fit, and which rank does not answer at all. torch's Flight Recorder tells what was before the attach.

    \b
    Example:
      probe 4242 hang
      probe 4242 hang --watch 15
    """
    endpoint = one_endpoint(endpoints, words)
    with connected(endpoint, 1.0) as connection:
        since, report = time.monotonic(), connection.hang()
        while watch is not None and not (report.hung and time.monotonic() - since >= watch):
            if not report.hung:
                since = time.monotonic()
            report = connection.hang()
    _show(report, as_json)
    if watch is not None:
        raise HungError(f"Nothing has moved for {watch:g} s.")


def _show(report: Report, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(asdict(report)))
        return
    click.echo(f"Verdict  {report.verdict}")
    for name, lines in (("Why", report.why), ("Next", report.next)):
        for place, line in enumerate(lines):
            click.echo(f"{name if not place else '':<9}{line}")
