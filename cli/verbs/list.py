"""`probe list`."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from probe.errors import EndpointError

from ..attaching import pid_of
from ..options import one_endpoint, process_option
from ..output.formats import check, format_options, show
from ..output.result import Records
from ..session import say

if TYPE_CHECKING:
    from probe.host.processes import Process

COLUMNS = ("pid", "rank", "job", "attached", "name", "listens", "command")


@click.command("list")
@click.argument("words", nargs=-1, metavar="[PID]")
@process_option
@format_options
def command(words: Sequence[str], endpoints: Sequence[str], form: str | None, output: str | None) -> None:
    """Show who can be attached to, and who is.

    These are the Python processes of this user. `job` is the pid that stands for a rank and those beside it:
    attach to that one. name and listens (tcp://HOST:PORT) are endpoints too, where an attach was told to give them.
    With a PID only the processes below it are shown.

    \b
    Example:
      probe list
    """
    check(form, output)
    endpoint = one_endpoint(endpoints, words)
    from probe.client import endpoints as known
    from probe.host import processes

    below = None if endpoint is None else set(processes.descendants(existing(pid_of(endpoint))))
    found = [p for p in processes.python_processes() if p.pid != os.getpid() and (below is None or p.pid in below)]
    attached = {address.pid: address.facts for each in known.jobs() for address in each.addresses}
    show(records(found, attached), form, output)
    if not found:
        say("No Python process of yours is running.")


def existing(pid: int) -> int:
    from probe.host.processes import start_ticks

    if start_ticks(pid) is None:
        raise EndpointError(f"There is no process {pid}.", "Run: probe list")
    return pid


def records(found: Sequence[Process], attached: Mapping[int, Mapping[str, Any]]) -> Records:
    python = {process.pid: process for process in found}
    shown = [process for process in found if not is_worker(process, python.get(process.ppid))]
    return Records(COLUMNS, [row(process, python, attached.get(process.pid)) for process in shown])


def row(process: Process, python: Mapping[int, Process], facts: Mapping[str, Any] | None) -> tuple[object, ...]:
    said = facts or {}
    told = since(facts), said.get("name") or None, said.get("tcp")
    return process.pid, process.rank, job(process, python), *told, process.command


def is_worker(process: Process, parent: Process | None) -> bool:
    """Whether it helps its parent: a forked copy (loader workers) or a helper of multiprocessing."""
    if parent is None:
        return False
    helps = "from multiprocessing" in process.command and not process.has_torch
    return helps or process.command == parent.command


def job(process: Process, python: Mapping[int, Process]) -> int | None:
    """The Python process that started this rank, None for what is no rank."""
    return process.ppid if process.rank is not None and process.ppid in python else None


def since(facts: Mapping[str, Any] | None) -> str | None:
    """When the agent came in, in local time."""
    if facts is None:
        return None
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(facts["attached_wall_ns"] / 1e9))
