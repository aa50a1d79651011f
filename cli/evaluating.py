"""Runs a snippet on the ranks of a job and shows its output as it arrives: what eval and demo have in common."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from probe.attach.deferred_signals import DeferredSignals
from probe.errors import SnippetFailed
from probe.text import span, title

from .output.formats import Output
from .output.printable import writer_of_output
from .output.rank_output import PATIENCE_S, RankOutput
from .output.result import Records
from .session import say

if TYPE_CHECKING:
    from probe.connection import Connection
    from probe.evals.snippet import RankResult


def evaluate(
    connection: Connection, code: str, filename: str = "<eval>", ranks: list[int] | None = None, now: bool = False,
    timeout: float | None = None, write: bool = True, frame: str = "", output: Output | None = None,
) -> None:  # fmt: skip
    """Run the code; show what it printed and returned, then where it ran.  Raises SnippetFailed if it raised.

    output: where the ranks' results go as rows, once all have ended; None shows them as text as it comes.
    """
    asked = ranks or [facts.rank or 0 for facts in connection.agents]
    outputs = {
        name: RankOutput(asked, writer_of_output(stream))
        for name, stream in (("stdout", sys.stdout), ("stderr", sys.stderr))
    }

    def on_output(ranks: list[int], stream: str, text: str) -> None:
        if stream == "waiting":
            say(text.rstrip("\n"))
            return
        for rank in ranks if output is None else ():
            outputs[stream].feed(rank, text)

    try:
        with _looked_at(outputs.values()):
            results = connection.eval(
                code, ranks=ranks, now=now, timeout=timeout, write=write, filename=filename, on_output=on_output,
                frame=frame,
            )  # fmt: skip
        for result in results if output is None else ():
            outputs["stdout"].feed(result.rank, f"{result.echo}\n" if result.echo else "")
            outputs["stderr"].feed(result.rank, result.traceback or "")
    finally:
        for each in outputs.values():
            each.finish()
    if output is not None:
        from probe.evals.snippet import RankResult

        output.show(Records.of(RankResult, results))
    for change in dict.fromkeys(change for result in results for change in result.changed):
        say(f"changed {change}")
    if began := [result for result in results if result.ran]:
        _say_where(began, now)
    failed = [result for result in results if not result.ok]
    if failed:
        what = failed[0].error or "The snippet failed"
        raise SnippetFailed(f"{what} ({title([result.rank for result in failed])})" if len(results) > 1 else what)


@contextmanager
def _looked_at(outputs: Iterable[RankOutput]) -> Iterator[None]:
    """Lines that wait for equal ones of other ranks go out in time, whether or not more text comes."""
    ended = threading.Event()

    def look() -> None:
        with suppress(OSError, ValueError):  # nobody reads any more: whatever is written next meets it again
            while not ended.wait(PATIENCE_S / 2):
                for each in outputs:
                    each.look()

    thread = threading.Thread(target=look, name="probe-output", daemon=True)
    with DeferredSignals():  # the thread blocks them for good, or evals could not defer them in this one
        thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _say_where(results: Sequence[RankResult], now: bool) -> None:
    steps = sorted({result.step for result in results if result.step is not None})
    where = f"at step {span(steps)}" if steps else "at once"
    held = seconds(max(result.held_s for result in results))
    say(f"ran {where}, beside the training" if now else f"ran {where}, training held {held}")


def seconds(value: float) -> str:
    """`0.4 s`, `12 ms`, `0.4 ms`."""
    if value >= 0.1:
        return f"{value:.1f} s"
    return f"{value * 1e3:.0f} ms" if value >= 0.01 else f"{value * 1e3:.1f} ms"
