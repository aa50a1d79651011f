"""A bar on stderr while something lasts for a known time; a line where that is no terminal that can redraw one.

Invariant: it takes one line of the terminal, which is empty again afterwards.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from .printable import can_redraw, unescaped

_BAR = 30  # characters at most
_REDRAW_S = 0.1
_BARS, _PLAIN_BARS = ("━", "─"), ("#", "-")


@contextmanager
def progress(seconds: float) -> Iterator[None]:
    if not can_redraw(sys.stderr):
        print(f"Watching for at most {seconds:.0f} s.", file=sys.stderr)
        yield
        return
    over = threading.Event()
    drawing = threading.Thread(target=_draw, args=(seconds, time.monotonic(), over), daemon=True)
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


def _draw(seconds: float, begun: float, over: threading.Event) -> None:
    """By the clock, and once more when it is over: so it is true on a busy machine, too."""
    terminal, is_over = unescaped(sys.stderr), False
    while True:
        done, columns = min(seconds, time.monotonic() - begun), shutil.get_terminal_size().columns
        terminal.write(f"\r{bar(done, seconds, columns, terminal.encoding)}\033[K")
        terminal.flush()
        if is_over:
            return
        is_over = over.wait(_REDRAW_S)
