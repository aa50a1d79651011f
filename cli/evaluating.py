"""A snippet run on the ranks of a job, its output shown as it comes: what eval and demo have in common."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, TextIO

from probe.errors import SnippetFailed
from probe.text import span, title

from .output.rank_output import RankOutput
from .session import say

if TYPE_CHECKING:
    from probe.connection import Connection
    from probe.evals.evaluation import RankResult


def evaluate(
    connection: Connection, code: str, filename: str = "<eval>", ranks: list[int] | None = None, now: bool = False,
    timeout: float | None = None, write: bool = True,
) -> None:  # fmt: skip
    """Run the code and show what it printed and returned.  Raises SnippetFailed where it raised."""
    asked = ranks or [int(facts["rank"] or 0) for facts in connection.agents]
    merged = {
        "stdout": RankOutput(asked, partial(_write, sys.stdout)),
        "stderr": RankOutput(asked, partial(_write, sys.stderr)),
    }

    def on_output(ranks: list[int], stream: str, text: str) -> None:
        for rank in ranks:
            merged[stream].feed(rank, text)

    try:
        results = list(
            connection.eval(
                code, ranks=ranks, now=now, timeout=timeout, write=write, filename=filename, on_output=on_output
            )
        )
        for result in results:
            merged["stdout"].feed(result.rank, f"{result.echo}\n" if result.echo else "")
            merged["stderr"].feed(result.rank, result.traceback or "")
    finally:
        for merge in merged.values():
            merge.finish()
    _tell(results, now)


def _write(stream: TextIO, text: str) -> None:
    stream.write(text)
    stream.flush()


def _tell(results: Sequence[RankResult], now: bool) -> None:
    """Where it ran and what it changed, on stderr.  Raises SnippetFailed for the ranks that failed."""
    for change in dict.fromkeys(change for result in results for change in result.changed):
        say(f"changed {change}")
    if results:
        held = max(result.held_s for result in results)
        steps = sorted({result.step for result in results if result.step is not None})
        where = f"at step {span(steps)}" if steps else "at once"
        say(f"ran {where}, training held {seconds(held)}" if not now else f"ran {where}, beside the training")
    failed = [result for result in results if not result.ok]
    if failed:
        what = failed[0].error or "The snippet failed"
        raise SnippetFailed(f"{what} ({title([result.rank for result in failed])})" if len(results) > 1 else what)


def seconds(value: float) -> str:
    """`0.4 s`, `12 ms`, `0.4 ms`."""
    if value >= 0.1:
        return f"{value:.1f} s"
    return f"{value * 1e3:.0f} ms" if value >= 0.01 else f"{value * 1e3:.1f} ms"
