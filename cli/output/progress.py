"""A bar on stderr while something lasts for a known time; a line where that is no terminal that can redraw one.

Invariant: it takes one line of the terminal, which is empty again afterwards.
"""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from .printable import can_redraw, unescaped

_BAR = 30  # characters at most
_BARS, _PLAIN_BARS = ("━", "─"), ("#", "-")


@contextmanager
def progress(seconds: float) -> Iterator[None]:
    if not can_redraw(sys.stderr):
        print(f"Watching for at most {seconds:.0f} s.", file=sys.stderr)
        yield
        return
    over = threading.Event()
    drawing = threading.Thread(target=_draw, args=(seconds, over), daemon=True)
    drawing.start()
    try:
        yield
    finally:
        over.set()
        drawing.join()
        unescaped(sys.stderr).write("\r\033[K")


def bar(done: float, seconds: float, columns: int, encoding: str) -> str:
    """What fits into less than so many columns: a full line would wrap."""
    told = f" {done:.0f} of {seconds:.0f} s"
    width = min(_BAR, columns - 1 - len(f"Watching {told}"))
    if width < 1:
        return f"Watching{told}"[: columns - 1]
    full, empty = _BARS if _can_show("".join(_BARS), encoding) else _PLAIN_BARS
    drawn = min(width, int(width * done / seconds))
    return f"Watching {full * drawn}{empty * (width - drawn)}{told}"


def _can_show(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def _draw(seconds: float, over: threading.Event) -> None:
    terminal = unescaped(sys.stderr)
    for tenth in range(int(seconds * 10) + 1):
        columns = shutil.get_terminal_size().columns
        terminal.write(f"\r{bar(tenth / 10, seconds, columns, terminal.encoding)}\033[K")
        terminal.flush()
        if over.wait(0.1):
            return
