"""Text that came from a process or another user, made harmless for a terminal: the one place where that is done.

cli/entry.py puts it around stdout and stderr.  Invariant: what reaches a terminal is printable, but for line ends, tabs
and what the command itself writes to unescaped().
"""

from __future__ import annotations

import codecs
import io
import os
import re
from collections.abc import Callable
from typing import Any, BinaryIO, TextIO, cast

_OF_SNIPPETS = re.compile(r"(\x1b\[[0-9;]*m|\r)")  # colours, and progress bars: neither does harm


def printable(text: str) -> str:
    """The text, with every other character than printable ones, line ends and tabs escaped."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in "\n\t" else repr(char)[1:-1] for char in text)


class Printable:
    """A text stream; what is written to it arrives printable.  On a terminal, so does what is written to its buffer."""

    def __init__(self, stream: TextIO) -> None:
        self.unescaped = stream

    def write(self, text: str) -> int:
        self.unescaped.write(printable(text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    @property
    def buffer(self) -> BinaryIO:
        return cast(BinaryIO, _Bytes(self, self.write)) if self.unescaped.isatty() else self.unescaped.buffer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unescaped, name)


class _Bytes(io.RawIOBase):
    """UTF-8 in pieces of any size, written to a stream as text: whole lines at a time if `by_line`."""

    def __init__(self, stream: Any, write: Callable[[str], object], by_line: bool = False) -> None:
        self._stream, self._write, self._by_line, self._held = stream, write, by_line, ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        text = self._held + self._decoder.decode(bytes(data))
        end = text.rfind("\n") + 1 if self._by_line else len(text)
        self._held = text[end:]
        self._write(text[:end])
        return len(data)

    def flush(self) -> None:
        self._stream.flush()


def unescaped(stream: Any) -> TextIO:
    """The stream below, for what moves the cursor: only what we have written ourselves may go there."""
    return cast(TextIO, getattr(stream, "unescaped", stream))


def can_redraw(stream: Any) -> bool:
    """Whether it is a terminal on which the cursor moves."""
    return bool(stream.isatty()) and os.environ.get("TERM") != "dumb"


def buffer_with_colours(stream: Any) -> BinaryIO:
    """The stream's buffer, for lines of ours with colours in them."""
    return cast(BinaryIO, _Bytes(stream, writer_of_output(stream), by_line=True))


def writer_of_output(stream: Any) -> Callable[[str], object]:
    """Writes what a snippet has printed, or lines of ours: to a terminal with colours, elsewhere as it is."""
    below, on_terminal = unescaped(stream), stream.isatty()

    def write(text: str) -> None:
        pieces = _OF_SNIPPETS.split(text) if on_terminal else []
        below.write("".join(piece if place % 2 else printable(piece) for place, piece in enumerate(pieces)) or text)
        below.flush()

    return write
