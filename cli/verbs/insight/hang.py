"""`probe ENDPOINT hang`."""

from __future__ import annotations

import json
import time
from dataclasses import asdict

import click

from probe.errors import HungError, SilentError

from ...options import SECONDS, Verb, endpoint_argument
from ...output.formats import json_option
from ...output.parts import show_parts
from ...session import connected, pause

_MOST_PAUSE_S = 5.0  # looking at a stuck job costs each rank some 40 ms


@click.command("hang", cls=Verb)
@endpoint_argument
@click.option("--watch", type=SECONDS, metavar="SECONDS",
              help="Wait until nothing has moved for SECONDS, then report and exit with status 10.")  # fmt: skip
@click.option("--native", is_flag=True, help="If it is stuck, also in which C or C++ function.")
@json_option("Print the report as one JSON object.")
def command(endpoint: str | None, watch: float | None, native: bool, as_json: bool) -> None:
    """Say why a job is stuck: verdict, reasons, what to do next.

    It looks at the job twice, a second apart: at what every rank waits for and does, which ranks have not reached a
    collective, which calls do not match, and which rank does not answer at all. What happened before the attach comes
    from torch's Flight Recorder.

    --native looks below Python, at ranks that stand still: up to four stand for 0.3 to 1.5 s each. It needs the package
    pystack.

    \b
    Example:
      probe 4242 hang
      probe 4242 hang --watch 15
      probe 4242 hang --native
    """
    with connected(endpoint, 1.0) as connection:
        since, report = time.monotonic(), connection.hang()
        while watch is not None and report.code != "ended" and not (report.hung and time.monotonic() - since >= watch):
            if not report.hung:
                since = time.monotonic()
            pause(min(watch / 3, _MOST_PAUSE_S))
            report = connection.hang()
        report = connection.hang(native=True) if native else report
    if as_json:
        click.echo(json.dumps(asdict(report)))
    else:
        show_parts({"Verdict": [report.verdict], "Why": report.why, "Stacks": report.stacks, "Next": report.next})
    if watch is not None and report.code == "ended":
        raise SilentError("No rank is left to watch.", "Run: probe list", "gone")
    if watch is not None:
        raise HungError(f"Nothing has moved for {watch:g} s.")
