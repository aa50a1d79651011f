"""`probe ENDPOINT hang`."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from probe.errors import HungError

from ..options import SECONDS, Verb, endpoint_option, one_endpoint
from ..session import connected

if TYPE_CHECKING:
    from probe.diagnose.report import Report


_PROSE = ("Verdict", "Why")
_PAUSE_S = 5.0  # a look at a job in which nothing moves costs each rank some 40 ms


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
            time.sleep(min(watch / 3, _PAUSE_S))
            report = connection.hang()
    _show(report, as_json)
    if watch is not None:
        raise HungError(f"Nothing has moved for {watch:g} s.")


def _show(report: Report, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(asdict(report)))
        return
    parts = {"Verdict": [report.verdict], "Why": report.why, "Stacks": report.stacks, "Next": report.next}
    for name, lines in parts.items():
        for place, line in enumerate(lines):
            for part, text in enumerate(_wrapped(line) if name in _PROSE else [line]):
                click.echo(f"{'' if place or part else name:<9}{'  ' if part else ''}{text}")


def _wrapped(line: str) -> list[str]:
    """In a terminal no wider than that is; elsewhere as it is, for who searches."""
    if not sys.stdout.isatty():
        return [line]
    width = max(40, shutil.get_terminal_size().columns)
    return textwrap.wrap(line, width - 11, break_long_words=False, break_on_hyphens=False)
