"""`probe doctor [PID]`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ..attaching import pid_of, ranks_of, who
from ..options import one_endpoint, process_option
from ..output.formats import check, format_options, show
from ..output.result import Records

if TYPE_CHECKING:
    from probe.attach.doctor import Condition

COLUMNS = ("rank", "pid", "condition", "holds", "told", "remedy", "code")


@click.command("doctor")
@click.argument("words", nargs=-1, metavar="[PID]")
@process_option
@format_options
def command(words: Sequence[str], endpoints: Sequence[str], form: str | None, output: str | None) -> None:
    """Say what stands between you and attaching, and its remedy.

    Without a PID it looks at this machine and this shell; with one also at that process, or at each rank below it.
    Nothing is changed or stopped. It ends with 0 only if attaching would work, else with the code that attach has.

    \b
    Example:
      probe doctor
      probe doctor 4242
    """
    check(form, output)
    endpoint = one_endpoint(endpoints, words)
    from probe.attach import doctor

    pids = ranks_of([pid_of(endpoint)]) if endpoint is not None else {}
    found: dict[tuple[int | None, int | None], list[Condition]] = {(None, None): doctor.of_machine()}
    found |= {(rank, pid): doctor.of_process(pid) for pid, rank in pids.items()}
    if form is not None or output is not None:
        show(Records(COLUMNS, [_row(*key, each) for key, those in found.items() for each in those]), form, output)
    else:
        for (rank, pid), those in found.items():
            _tell(those, who(rank, pid) if pid is not None else "")
    failed = [each.error for those in found.values() for each in those if each.error is not None]
    if failed:
        raise failed[0]
    if form is None and output is None:
        click.echo("Nothing stands in the way." if pids else "Nothing here stands in the way: probe doctor PID")


def _row(rank: int | None, pid: int | None, one: Condition) -> tuple[object, ...]:
    error = one.error
    return (rank, pid, one.name, one.holds, one.detail, error.hint if error else None, error.code if error else None)


def _tell(found: Sequence[Condition], whose: str) -> None:
    if whose:
        click.echo(f"\n{whose}")
    for one in found:
        click.echo(f"{'ok' if one.holds else 'NO':<4}{one.name:<15}{one.detail}")
        if one.error is not None and one.error.hint:
            click.echo(f"{'':<19}{one.error.hint}")
