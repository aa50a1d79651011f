"""`probe list`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import click

from probe.errors import EndpointError
from probe.text import span

from ...listing import Job, Listed, running, servers
from ...options import process_argument
from ...output.formats import Output, output_options
from ...output.result import Records
from ...session import say

if TYPE_CHECKING:
    from probe.host.facts import Facts

COLUMNS = ("pid", "rank", "job", "torch", "attached", "name", "listens", "command")
SHORT = ("pid", "ranks", "attached", "name", "listens", "command")
_LEAST_WIDTH = 12  # of a text that is cut: a line for each job fits into 80 columns
_SERVER = "probe server"


@click.command("list")
@click.option("--all", "every", is_flag=True, help="Also other Python processes, and the servers beside jobs.")
@process_argument
@output_options
def command(pid: int | None, every: bool, output: Output) -> None:
    """List jobs you can attach to, and attached ones.

    These are your processes that have loaded torch, one line for a launcher with all its ranks: attach to its pid. Name
    and listens (tcp://HOST:PORT) are endpoints too, if attach was given --name or --listen. With a PID, only what runs
    below that process is listed. With --format there is a row for each process, and times are in UTC.

    \b
    Example:
      probe list
      probe list --all
      probe list --json
    """
    from probe.host.processes import start_ticks

    if pid is not None and start_ticks(pid) is None:
        raise EndpointError(f"There is no process {pid}.", "Run: probe list")
    skipped = list[str]()
    found = running(pid, skipped)
    jobs = [job for job in found if every or job.has_torch]
    beside = servers() if every and pid is None else {}
    output.show(to_read(jobs, beside) if output.kind == "table" else to_filter(jobs, beside))
    for line in skipped:
        say(line)
    if not jobs and output.kind == "table":
        say("None of your processes has loaded torch.")
    if (hidden := len(found) - len(jobs)) and output.kind == "table":
        say(f"{hidden} other Python process{'es' * (hidden > 1)}: probe list{'' if pid is None else f' {pid}'} --all")


def to_read(jobs: Iterable[Job], servers: Mapping[int, str]) -> Records:
    """A line for each job, without columns that say nothing.  servers: pid -> endpoint."""
    rows = [(job.pid, _ranks(job), _attached(job), *_endpoints(job.attached[:1]), job.shortened) for job in jobs]
    rows += [(pid, "", "", "", endpoint, _SERVER) for pid, endpoint in servers.items()]
    kept = [place for place, name in enumerate(SHORT) if name in ("pid", "command") or any(row[place] for row in rows)]
    shown = [tuple(row[place] for place in kept) for row in rows]
    return Records([SHORT[place] for place in kept], shown, least_width=_LEAST_WIDTH)


def _ranks(job: Job) -> str:
    """`0-3`, or `2 spawned` where nothing says which they are."""
    known = [each.rank for each in job.ranks if each.rank is not None]
    return span(known) if known else f"{len(job.ranks)} spawned" * (len(job.ranks) > 1)


def _attached(job: Job) -> str:
    """When the first rank was, in local time: `17:57:39` today, else `Nov 24 17:57`; or how many ranks are."""
    if len(job.attached) < len(job.ranks):
        return f"{len(job.attached)} of {len(job.ranks)}" if job.attached else "no"
    then = time.localtime(min(each.attached_wall_ns for each in job.attached) / 1e9)
    is_today = then[:3] == time.localtime()[:3]
    return time.strftime("%H:%M:%S" if is_today else "%b %d %H:%M", then)


def _endpoints(agents: Sequence[Facts]) -> tuple[str, str]:
    return next(((each.name, each.tcp or "") for each in agents), ("", ""))


def to_filter(jobs: Iterable[Job], servers: Mapping[int, str]) -> Records:
    """A row for each process."""
    rows = [_row(each) for job in jobs for each in job.processes]
    rows += [(pid, None, None, False, None, None, endpoint, _SERVER) for pid, endpoint in servers.items()]
    return Records(COLUMNS, rows)


def _row(each: Listed) -> tuple[object, ...]:
    process, facts = each.process, each.facts
    job = each.job if each.job != process.pid else None
    since = facts and f"{datetime.fromtimestamp(facts.attached_wall_ns / 1e9, timezone.utc):%Y-%m-%dT%H:%M:%S.%fZ}"
    said = since, facts and (facts.name or None), facts and facts.tcp
    return process.pid, each.rank, job, process.has_torch, *said, process.command
