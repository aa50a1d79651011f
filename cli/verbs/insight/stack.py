"""`probe ENDPOINT stack`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from probe.errors import SilentError, UsageError
from probe.text import grouped, title

from ...options import Verb, endpoint_argument, timeout_option
from ...output.formats import Output, output_options
from ...output.result import Records
from ...session import connected, say, say_note

if TYPE_CHECKING:
    from probe.client.agent_requests import Unreached
    from probe.host.native_frames import NativeFrame
    from probe.snapshot.stacks import Folded, Thread

COLUMNS = ("rank", "thread", "native_id", "thread_name", "is_main", "holds_gil", "depth", "function", "file", "line")
_MOST_NATIVE = 30


@click.command("stack", cls=Verb)
@endpoint_argument
@click.option("--native", is_flag=True, help="Also the C and C++ frames, of ranks that stand still.")
@timeout_option(3.0)
@output_options
def command(endpoint: str | None, native: bool, timeout: float, output: Output) -> None:
    """Show the Python stacks of all ranks.

    Ranks at the same place share one stack; the innermost frame comes first. With --format there is a row per frame, as
    in python.stack. Stacks are read from outside, so a rank that holds its GIL or is stopped has one too; for such a
    rank, it also shows what its threads wait for in the kernel.

    --native also shows which C and C++ functions the thread that trains has called below Python. Looking stops a rank
    for 0.3 to 1.5 s, so one that goes on is left alone. It needs the package pystack.

    \b
    Example:
      probe 4242 stack
      probe 4242 stack --native
    """
    if native and not output.is_default:
        raise UsageError("--native shows text, and no rows.", "Leave out --format, or --native.")
    with connected(endpoint, timeout) as connection:
        below = connection.native_stacks() if native else {}
        notes = connection.notes
        stacks = connection.stacks()
        unreached = connection.unreached
    total = len(stacks.keys() | {each.rank for each in unreached})
    if output.is_default:
        from probe.snapshot.stacks import folded

        shown = (*_lines(folded(stacks), total > 1), *_native_lines(below), *_from_outside(unreached, bool(stacks)))
        for line in shown:
            click.echo(line)
    else:
        rows = [
            (rank, *_identity(each), depth, frame.function, frame.file, frame.line)
            for rank, threads in stacks.items()
            for each in threads
            for depth, frame in enumerate(each.frames)
        ]
        output.show(Records(COLUMNS, rows))
    for note in notes:
        say_note(note)
    for silent in unreached:
        say(f"{silent.why.rstrip('.')}{_how_else(silent, silent.rank in stacks)}")
    if lacking := [each for each in unreached if each.rank not in stacks]:
        raise SilentError(f"{len(lacking)} of {total} ranks did not answer.")


def _identity(thread: Thread) -> tuple[int, int | None, str | None, bool, bool | None]:
    return thread.ident, thread.native_id, thread.name, thread.is_main, thread.holds_gil


def _how_else(silent: Unreached, is_read: bool) -> str:
    if is_read:
        return ": its stacks were read from its memory"
    where = f" on {silent.host}" * bool(silent.host)
    return f": its stack from outside: py-spy dump --pid {silent.pid}{where}" * bool(silent.pid)


def _lines(found: Sequence[Folded], several: bool) -> Iterator[str]:
    for place, one in enumerate(found):
        if place:
            yield ""
        yield f"{title(one.ranks)}, {one.thread.title}:" if several else f"{one.thread.title}:"
        yield from (f"  {frame}" for frame in one.thread.frames)
        if one.thread.cut:
            yield f"  … {one.thread.cut} more"


def _native_lines(below: Mapping[int, Sequence[NativeFrame]]) -> Iterator[str]:
    for frames, ranks in grouped((tuple(map(str, frames)), rank) for rank, frames in below.items()).items():
        yield ""
        yield f"{title(ranks)}, below Python:"
        yield from (f"  {frame}" for frame in frames[:_MOST_NATIVE])
        if more := len(frames[_MOST_NATIVE:]):
            yield f"  … {more} more"


def _from_outside(unreached: Iterable[Unreached], below: bool) -> Iterator[str]:
    """What is known of ranks that do not answer.  below: whether other lines come before these."""
    from probe.attach.gil_holder import describe_gil_holder
    from probe.host.process_status import native_threads, told_together

    for pid in (each.pid for each in unreached if not each.host):
        if threads := told_together(native_threads(pid)):
            yield from [""] * below
            yield f"pid {pid}, threads in the kernel:"
            yield from (f"  {line}" for line in threads)
            if gil := describe_gil_holder(pid):
                yield f"  {gil}"
            below = True
