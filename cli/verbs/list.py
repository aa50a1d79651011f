"""`probe list`."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from ..attaching import pid_of
from ..formats import check, format_options, show
from ..options import endpoint_option, one_endpoint
from ..result import Records
from ..session import say

if TYPE_CHECKING:
    from probe.processes import Process

COLUMNS = ("pid", "rank", "job", "attached", "command")


@click.command("list")
@click.argument("words", nargs=-1, metavar="[PID]")
@endpoint_option
@format_options
def command(words: Sequence[str], endpoints: Sequence[str], form: str | None, output: str | None) -> None:
    """Show who can be attached to, and who is.

    These are the Python processes of this user. `job` is the pid that stands for a rank and those beside it:
    attach to that one. With a PID only its ranks are shown.

    \b
    Example:
      probe list
    """
    check(form, output)
    endpoint = one_endpoint(endpoints, words)
    from probe import endpoints as known
    from probe import processes

    everyone = [process for process in processes.python_processes() if process.pid != os.getpid()]
    found = everyone if endpoint is None else processes.ranks_below(pid_of(endpoint))
    attached = {pid: facts for each in known.jobs() for pid, facts in each.attached}
    show(records(found, everyone, attached), form, output)
    if not found:
        say("No Python process of yours is running.")


def records(
    found: Sequence[Process], everyone: Sequence[Process], attached: Mapping[int, Mapping[str, Any]]
) -> Records:
    parents = {process.pid: process.ppid for process in everyone}
    return Records(
        COLUMNS, [(p.pid, p.rank, job(p.pid, parents), since(attached.get(p.pid)), p.command) for p in found]
    )


def job(pid: int, parents: Mapping[int, int]) -> int | None:
    """The topmost Python process above pid, None where there is none."""
    top = pid
    while parents.get(top) in parents:
        top = parents[top]
    return top if top != pid else None


def since(facts: Mapping[str, Any] | None) -> str | None:
    """When the agent came in, in local time."""
    if facts is None:
        return None
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(facts["attached_wall_ns"] / 1e9))
