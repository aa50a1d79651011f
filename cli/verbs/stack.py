"""`probe ENDPOINT stack`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from probe.errors import SilentError
from probe.text import title

from ..options import SECONDS, Verb, endpoint_option, one_endpoint
from ..output.formats import check, format_options, show
from ..output.result import Records
from ..session import connected, say

if TYPE_CHECKING:
    from probe.connection import Unreached
    from probe.snapshot.stacks import Folded, Thread

COLUMNS = ("rank", "thread", "native_id", "is_main", "depth", "function", "file", "line")


@click.command("stack", cls=Verb)
@click.argument("words", nargs=-1, metavar="")
@endpoint_option
@click.option("--timeout", type=SECONDS, metavar="SECONDS", default=3.0, show_default=True,
              help="Seconds to wait for a silent rank.")  # fmt: skip
@format_options
def command(
    words: Sequence[str], endpoints: Sequence[str], timeout: float, form: str | None, output: str | None
) -> None:
    """Show where the Python threads of all ranks stand.

    Ranks that stand at the same place are one stack; the innermost frame comes first. With --format it is a row a
    frame, as in python.stack. Of a rank that does not answer the kernel tells what its threads wait in; the tool that
    knows their Python from outside is named.

    \b
    Example:
      probe 4242 stack
    """
    check(form, output)
    endpoint = one_endpoint(endpoints, words)
    with connected(endpoint, timeout) as connection:
        stacks = connection.stacks()
        unreached = connection.unreached
    if form is not None or output is not None:
        show(Records(COLUMNS, list(_rows(stacks))), form, output)
    else:
        from probe.snapshot.stacks import folded

        for line in (*_lines(folded(stacks), len(stacks) + len(unreached) > 1), *_outside(unreached, bool(stacks))):
            click.echo(line)
    for each in unreached:
        where = f" on {each.host}" * bool(each.host)
        look = f": its stack from outside: py-spy dump --pid {each.pid}{where}" * bool(each.pid)
        say(f"{each.why.rstrip('.')}{look}")
    if unreached:
        raise SilentError(f"{len(unreached)} of {len(stacks) + len(unreached)} ranks did not answer.")


def _rows(stacks: Mapping[int, Sequence[Thread]]) -> Iterator[tuple[object, ...]]:
    for rank, threads in stacks.items():
        for each in threads:
            for depth, frame in enumerate(each.frames):
                about = (rank, each.name, each.native_id, each.is_main)
                yield (*about, depth, frame.function, frame.file, frame.line)


def _lines(found: Sequence[Folded], several: bool) -> Iterator[str]:
    for place, one in enumerate(found):
        if place:
            yield ""
        yield f"{title(one.ranks)}, {one.thread.title}:" if several else f"{one.thread.title}:"
        yield from (f"  {frame}" for frame in one.thread.frames)
        if one.thread.cut:
            yield f"  … {one.thread.cut} more"


def _outside(unreached: Iterable[Unreached], below: bool) -> Iterator[str]:
    """What can be known of those whose Python nobody can ask."""
    from probe.attach.gil_holder import describe_gil_holder
    from probe.host.kernel_threads import native_threads, told_together

    for pid in (each.pid for each in unreached if not each.host):
        if threads := told_together(native_threads(pid)):
            yield from [""] * below
            yield f"pid {pid}, as the kernel has its threads:"
            yield from (f"  {line}" for line in threads)
            if gil := describe_gil_holder(pid):
                yield f"  {gil}"
            below = True
