"""A statement asked again and again: redrawn in place on a terminal, written one after the other elsewhere.

Called by the shell's .watch.  Invariant: however it ends, the terminal is as it was.
"""

from __future__ import annotations

import select
import shutil
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager

from probe.errors import Interrupted

from ..output import table
from ..session import say
from .shell import Answer, Shell

_LEAST_PAUSE_S = 0.1  # each look makes the job's agents answer
_OTHER_SCREEN, _OWN_SCREEN = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _REST_OF_LINE, _REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"


def watch(shell: Shell, every: float, sql: str) -> None:
    """Until a key or Ctrl-C, which end it in order; what was seen last stays on the screen.  Raises ProbeError."""
    in_place = shell.form == "table" and sys.stdout.isatty()
    answer, seen = None, list[str]()
    try:
        with _keys(), _screen(in_place):
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
    """What fills so many lines at most, none of them longer than `columns`."""
    head, foot = [title, ""], answer.notes
    room = max(1, lines - len(head) - len(foot))
    body = list(table.render(answer.result.first(lines), columns)) if answer.result.names else []
    if len(body) > room:
        body = [*body[: room - 1], "…"]
    return [table.cut(line, columns) for line in (*head, *body, *foot)][:lines]


def _draw(answer: Answer, title: str) -> list[str]:
    """The lines that are on the screen now, above the last."""
    size = shutil.get_terminal_size()
    seen = frame(answer, title, size.columns, size.lines - 1)
    status = table.cut(answer.summary(f", {time.strftime('%H:%M:%S')}; any key ends"), size.columns)
    sys.stdout.write(_HOME + "\n".join(line + _REST_OF_LINE for line in (*seen, status)) + _REST_OF_SCREEN)
    sys.stdout.flush()
    return seen


@contextmanager
def _screen(in_place: bool) -> Iterator[None]:
    """The terminal's other screen, so that what was there before comes back."""
    if not in_place:
        yield
        return
    sys.stdout.write(_OTHER_SCREEN)
    try:
        yield
    finally:
        sys.stdout.write(_OWN_SCREEN)
        sys.stdout.flush()


@contextmanager
def _keys() -> Iterator[None]:
    """Keys arrive as they are pressed, without Enter and unseen.  Ctrl-C stays what it is; Ctrl-Z is a key like others,
    for a shell around would leave the screen as it is."""
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        now = termios.tcgetattr(sys.stdin)
        now[6][termios.VSUSP] = b"\0"
        termios.tcsetattr(sys.stdin, termios.TCSANOW, now)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSAFLUSH, before)  # the key that ended it is no input


def _pressed(within: float) -> bool:
    """Whether a key comes in that time.  Input that is no terminal has none."""
    if not sys.stdin.isatty():
        time.sleep(within)
        return False
    return bool(select.select([sys.stdin], [], [], within)[0])
