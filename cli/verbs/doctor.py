"""`probe doctor [PID]`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ..attaching import who
from ..choosing import ranks_of
from ..options import process_argument
from ..output.formats import Output, output_options
from ..output.result import Records

if TYPE_CHECKING:
    from probe.attach.doctor import Condition

COLUMNS = ("rank", "pid", "condition", "holds", "told", "remedy", "code")


@click.command("doctor")
@process_argument
@output_options
def command(pid: int | None, output: Output) -> None:
    """Check whether you can attach, and how to fix it.

    Without a PID, it checks this machine and this shell; with one, also that process, or each rank under it.
    Nothing is changed or stopped. The exit status is 0 only if attaching would work, else that of attach.

    \b
    Example:
      probe doctor
      probe doctor 4242
    """
    from probe.attach import doctor

    pids = ranks_of([pid], every_job=True) if pid is not None else {}
    checked: list[tuple[int | None, int | None, list[Condition]]] = [(None, None, doctor.of_machine())]
    checked += [(rank, pid, doctor.of_process(pid)) for pid, rank in pids.items()]
    if output.is_default:
        for rank, pid, conditions in checked:
            if pid is not None:
                click.echo(f"\n{who(rank, pid)}")
            print_conditions(conditions)
    else:
        rows = [
            (rank, pid, one.name, one.holds, one.detail, one.error and one.error.hint, one.error and one.error.code)
            for rank, pid, conditions in checked
            for one in conditions
        ]
        output.show(Records(COLUMNS, rows))
    for error in (each.error for _, _, conditions in checked for each in conditions if each.error is not None):
        raise error
    if output.is_default:
        click.echo("You can attach." if pids else "You can attach from here. To check a process: probe doctor PID")


def print_conditions(conditions: list[Condition]) -> None:
    for one in conditions:
        click.echo(f"{'ok' if one.holds else 'NO':<4}{one.name:<15}{one.detail}")
        if one.error is not None and one.error.hint:
            click.echo(f"{'':<19}{one.error.hint}")
