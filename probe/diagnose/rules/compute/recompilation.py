"""Functions that torch.compile compiles again and again."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

from ...figures import figure, ms, pct
from ...rule import Finding, Rule
from ...watched import Watched

LEAST = 0.03  # of the time
# A second graph for sizes that vary, and one for the last batch of an epoch, are usual.  More than that does not end.
_LEAST_STEPS = 4
_MOST_CHARACTERS = 160  # of a guard
_SQL = (
    "SELECT function, file, line, COUNT(*) AS times, COUNT(DISTINCT step) AS steps, SUM(duration) AS seconds, "
    "MAX(step) AS latest, MAX_BY(reason, start_ns) FILTER (reason IS NOT NULL) AS reason, "
    "(SELECT MEDIAN(step) FROM python.step_trace WHERE {window}) AS middle "
    "FROM python.compile_trace WHERE {window} AND recompile AND NOT in_eval GROUP BY ALL ORDER BY seconds DESC"
)


def _find(watched: Watched) -> Iterator[Finding]:
    for row in watched.rows(_SQL):
        # Every compilation is recorded, so this is no estimate.
        seconds = row["seconds"] / (watched.steps * len(watched.ranks))
        share = seconds / watched.step_s
        goes_on = row["latest"] >= row["middle"]
        if share < LEAST or row["steps"] < _LEAST_STEPS or not goes_on:
            continue
        each_s = row["seconds"] / row["times"]
        yield Finding(
            f"Recompilation: {row['function'] or 'a function'} was compiled again {row['times']} times in "
            f"{watched.steps} steps, {pct(share)} of the time.",
            why=[f"{ms(each_s)} each, {figure(row['seconds'])} s in all", *_reasons(row)],
            remedy=_remedy(row["reason"] or ""), seconds=seconds, share=share, where=_place(row),
            saves=seconds, assumes="once nothing is compiled again",
        )  # fmt: skip


def _reasons(row: dict[str, Any]) -> list[str]:
    reason = " ".join((row["reason"] or "").split())
    cut = reason if len(reason) <= _MOST_CHARACTERS else f"{reason[:_MOST_CHARACTERS]} …"
    return [f"the guard that failed last: {cut}"] if reason else []


def _remedy(reason: str) -> str:
    if re.search("size mismatch|stride mismatch|size\\(\\)|shape", reason):
        return "torch.compile(…, dynamic=True), torch._dynamo.mark_dynamic for what varies, or batches of a few sizes"
    return "keep what the guard checks the same in every call, or leave it out of the compiled function"


def _place(row: dict[str, Any]) -> str:
    return f"{row['function']} ({os.path.basename(row['file'])}:{row['line']})" if row["file"] else ""


RECOMPILATION: Rule[Watched] = Rule(
    "recompilation",
    "A function is compiled again and again.",
    _find,
    needs=("python.step_trace", "python.compile_trace"),
    of=("compute-bound", "python-outside-model", "periodic-stall"),
    sql=_SQL,
)
