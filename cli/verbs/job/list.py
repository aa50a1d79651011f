"""`probe list`."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from probe.errors import EndpointError

from ...options import process_argument
from ...output.formats import Output, output_options
from ...output.result import Records
from ...session import say

if TYPE_CHECKING:
    from probe.host.facts import Facts
    from probe.host.processes import Process

COLUMNS = ("pid", "rank", "job", "attached", "name", "listens", "command")


@click.command("list")
@process_argument
@output_options
def command(pid: int | None, output: Output) -> None:
    """List processes you can attach to, and attached ones.

    These are your Python processes. `job` is the pid of the process that started a rank and its peers: attach to that
    one. name and listens (tcp://HOST:PORT) are endpoints too, if attach was given --name or --listen. With a PID, only
    the processes below it are listed. A probe server beside a job is listed too; it passes queries on to the job.

    \b
    Example:
      probe list
    """
    from probe.client import endpoints
    from probe.host import processes
    from probe.serve.handover import ANSWERS_MODULE, KEEPER_MODULE, SERVER_MODULE

    if pid is not None and processes.start_ticks(pid) is None:
        raise EndpointError(f"There is no process {pid}.", "Run: probe list")
    below = None if pid is None else set(processes.descendants(pid))
    servers = processes.with_argument(SERVER_MODULE)
    beside = [pid for module in (KEEPER_MODULE, ANSWERS_MODULE) for pid in processes.with_argument(module)]
    ours = {os.getpid(), *servers, *beside}
    found = [p for p in processes.python_processes() if p.pid not in ours and (below is None or p.pid in below)]
    skipped = list[str]()
    attached = {address.pid: address.facts for each in endpoints.jobs(skipped) for address in each.addresses}
    output.show(records(found, attached, {} if pid is not None else servers))
    for line in skipped:
        say(line)
    if not found:
        say("None of your Python processes is running.")


def records(found: Sequence[Process], attached: Mapping[int, Facts], servers: Mapping[int, str]) -> Records:
    """A row for each process except workers.  attached: pid -> facts of the agent; servers: pid -> endpoint."""
    python = {process.pid: process for process in found}
    rows = []
    for process in found:
        parent = python.get(process.ppid)
        multiprocessings_own = "from multiprocessing" in process.command and not process.has_torch
        if parent is not None and (multiprocessings_own or process.command == parent.command):  # a loader's forked copy
            continue
        job = process.ppid if process.rank is not None and parent is not None else None
        facts = attached.get(process.pid)
        since = facts and time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(facts.attached_wall_ns / 1e9))
        known = since, facts and (facts.name or None), facts and facts.tcp
        rows.append((process.pid, process.rank, job, *known, process.command))
    rows += [(pid, None, None, None, None, endpoint, "probe server") for pid, endpoint in servers.items()]
    return Records(COLUMNS, rows)
