"""A statement repeated at an interval: redrawn in place on a terminal, written one after the other elsewhere.

Called by the shell's .watch.  Invariant: however it ends, the terminal is as it was.
"""

from __future__ import annotations

import select
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from probe.errors import Interrupted

from ..output import table
from ..output.printable import can_redraw, printable, unescaped
from ..session import say
from .shell import Answer, Shell

_LEAST_PAUSE_S = 0.1  # each query makes the job's agents answer
_OTHER_SCREEN, _OWN_SCREEN = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _REST_OF_LINE, _REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"


def watch(shell: Shell, every: float, sql: str) -> None:
    """Repeat until a key or Ctrl-C is pressed; the last result stays on the screen.  Raises ProbeError."""
    in_place = shell.format == "table" and can_redraw(sys.stdout)
    answer, seen = None, list[str]()
    try:
        with _keys() if sys.stdin.isatty() else nullcontext(), _screen() if in_place else nullcontext():
            while True:
                begun = time.monotonic()
                answer = shell.ask(sql)
                if in_place:
                    seen = _draw(answer, f"every {every:g} s: {' '.join(sql.split())}")
                else:
                    shell.show(answer)
                if _pressed(max(_LEAST_PAUSE_S, begun + every - time.monotonic())):
                    break
    except (Interrupted, KeyboardInterrupt):
        if not shell.at_terminal:
            raise
    if seen and answer is not None:
        print("\n".join(seen))
        say(answer.summary())


def frame(answer: Answer, title: str, columns: int, lines: int) -> list[str]:
    """What fits into so many lines, none of them longer than `columns`."""
    room = max(1, lines - 2 - len(answer.notes))
    body = list(table.render(answer.result.first(lines), columns)) if answer.result.names else []
    if len(body) > room:
        body = [*body[: room - 1], "…"]
    return [table.cut(line, columns) for line in (title, "", *body, *map(str, answer.notes))][:lines]


def _draw(answer: Answer, title: str) -> list[str]:
    """Draws the screen; returns its lines, without the status line at the bottom."""
    size = shutil.get_terminal_size()
    seen = frame(answer, title, size.columns, size.lines - 1)
    status = table.cut(answer.summary(f", {time.strftime('%H:%M:%S')}; press any key to stop"), size.columns)
    lines = (f"{printable(line)}{_REST_OF_LINE}" for line in (*seen, status))
    _move(_HOME + "\n".join(lines) + _REST_OF_SCREEN)
    return seen


@contextmanager
def _screen() -> Iterator[None]:
    """The terminal's alternate screen, so that its previous content comes back."""
    _move(_OTHER_SCREEN)
    try:
        yield
    finally:
        _move(_OWN_SCREEN)


def _move(sequence: str) -> None:
    """At once: the next result may take long."""
    stream = unescaped(sys.stdout)
    stream.write(sequence)
    stream.flush()


@contextmanager
def _keys() -> Iterator[None]:
    """Keys arrive as they are pressed, without Enter and without echo.

    Ctrl-C keeps its meaning; Ctrl-Z is a key like any other, since suspending would leave the alternate screen on.
    """
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        now = termios.tcgetattr(sys.stdin)
        now[6][termios.VSUSP] = b"\0"
        termios.tcsetattr(sys.stdin, termios.TCSANOW, now)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSAFLUSH, before)  # the key that ended it must not be read as input


def _pressed(within: float) -> bool:
    """Whether a key is pressed in that time, in seconds.  Input that is not a terminal has no keys."""
    if sys.stdin.isatty():
        return bool(select.select([sys.stdin], [], [], within)[0])
    time.sleep(within)
    return False
