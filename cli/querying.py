"""A question in SQL to a job, and its answer as it is shown: what `probe query` and `probe ask` have in common."""

from __future__ import annotations

from .asking import answered_by_server
from .output.formats import Output
from .output.result import ArrowResult, told
from .session import connected, say, say_note
from .shell.statements import check

MOST_BYTES = 1e9  # that are fetched, unless the user allows more


def query(
    endpoint: str | None, sql: str, output: Output, *, timeout: float, explain: bool = False, open_steps: bool = False,
    min_ranks: int = 1, max_fetch: float = MOST_BYTES, of_one_job: bool = False,
) -> None:  # fmt: skip
    """Answered by the server beside the job, or here.  Raises ProbeError.

    explain: also show what was fetched; of_one_job: the SQL does not tell jobs apart.
    """
    options = {"open_steps": open_steps, "min_ranks": min_ranks, "max_fetch": max_fetch}
    if answered_by_server(endpoint, {"sql": sql, "timeout": timeout, "explain": explain, **options}, output):
        return
    check(sql)
    with connected(endpoint, timeout) as connection:
        if of_one_job:
            connection.require_one_job()
        result = connection.query(sql, open_steps=open_steps, min_ranks=min_ranks, max_fetch=max_fetch)
    before, after = told(result, explain)
    for line in before:
        say_note(line)
    output.show(ArrowResult(result.table))
    for line in after:
        say(line)
