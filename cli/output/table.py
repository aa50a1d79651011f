"""The table format: columns as wide as their data, numbers to the right, NULL shown as NULL.

Into a terminal, long text cells are cut until a row fits, and what cannot fit is shown one column a line;
elsewhere nothing is cut.  Pure functions: the width is given, never asked for here.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterator, Sequence
from decimal import Decimal
from textwrap import wrap
from typing import Any

from .result import Result

GAP = "  "
LEAST_WIDTH = 26  # a text column is never cut below this: times and most names of modules stay whole


def render(result: Result, width: int | None = None, wrap_last: bool = False) -> Iterator[str]:
    """The lines of the table.

    width: of the terminal, None for no limit.  wrap_last: what would be cut of the last column's text (paragraphs
    of documentation, one a line) goes on in the next line.
    """
    header = [plain(name) for name in result.names]
    widths = [text_width(name) for name in header]
    rows: list[tuple[str, ...]] = []
    for batch in result.batches():
        columns = [[cell(value) for value in column] for column in batch[: len(batch) - wrap_last]]
        columns += [[paragraphs(str(value), width) for value in column] for column in batch[len(columns) :]]
        widths = [max([width, *map(_widest, texts)]) for width, texts in zip(widths, columns, strict=True)]
        rows += zip(*columns, strict=True)
    if width is not None:
        widths = fit(widths, result.numeric, width)
        if row_width(widths) > width:
            yield from upright(header, rows, width)
            return
    yield _line(header, widths, result.numeric)
    yield GAP.join("-" * column for column in widths)
    for row in rows:
        for line in _broken(row, widths) if wrap_last else [row]:
            yield _line(line, widths, result.numeric)


def cell(value: Any) -> str:
    """One value as text of one line."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (float, Decimal)):
        return number(value)
    if isinstance(value, (bytes, bytearray)):
        return value.hex()
    if isinstance(value, list):
        return f"[{', '.join(map(cell, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{plain(str(key))}: {cell(item)}" for key, item in value.items()) + "}"
    return plain(str(value))


def paragraphs(text: str, width: int | None) -> str:
    """One a line; all in one line where nothing limits it."""
    return ("\n" if width else " ").join(map(plain, text.split("\n")))


def number(value: Any) -> str:
    """A float or Decimal: six significant digits, all before the point, and never a digit that is not there."""
    if not math.isfinite(value):
        return str(value)
    size = float(abs(value))
    if size >= 1e15:
        return f"{value:.6g}" if isinstance(value, float) else str(value)
    if value == int(value):
        return f"{int(value)}.0" if isinstance(value, float) else str(value)
    if size >= 1e5:
        return f"{value:.1f}"
    return f"{float(value):.6g}"


def plain(text: str) -> str:
    """The text on one line; what would move a terminal's cursor or colour it is shown escaped."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def text_width(text: str) -> int:
    """The columns a terminal takes for it: wide East Asian characters two, combining marks none."""
    if text.isascii():
        return len(text)
    return sum(map(_char_width, text))


def _widest(text: str) -> int:
    return text_width(text) if "\n" not in text else max(map(text_width, text.split("\n")))


def _char_width(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def row_width(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def upright(header: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Iterator[str]:
    """Each row as a block of lines, one for each column."""
    names = max(map(text_width, header))
    for number, row in enumerate(rows, 1):
        yield f"-- row {number} ".ljust(min(width, 2 * names), "-")
        for name, text in zip(header, row, strict=True):
            yield cut(f"{name}{' ' * (names - text_width(name))}{GAP}{text}".replace("\n", " "), width)


def fit(widths: Sequence[int], numeric: Sequence[bool], width: int) -> list[int]:
    """widths with the widest text columns narrowed until a row takes `width`, or none can be narrowed."""
    widths = list(widths)
    over = row_width(widths) - width
    texts = [place for place, is_number in enumerate(numeric) if not is_number]
    while over > 0 and texts:
        place = max(texts, key=widths.__getitem__)
        if widths[place] <= LEAST_WIDTH:
            break
        widths[place] -= 1
        over -= 1
    return widths


def cut(text: str, width: int) -> str:
    """The text, or its beginning with `…` where it is wider than `width`."""
    if text_width(text) <= width:
        return text
    kept, used = "", 1
    for char in text:
        used += _char_width(char)
        if used > width:
            break
        kept += char
    return f"{kept}…"


def _broken(row: Sequence[str], widths: Sequence[int]) -> list[Sequence[str]]:
    parts = [part for line in row[-1].split("\n") for part in wrap(line, widths[-1])] or [""]
    blank = [""] * (len(row) - 1)
    return [[*row[:-1], parts[0]], *([*blank, part] for part in parts[1:])]


def _line(cells: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> str:
    padded = []
    for text, width, is_number in zip(cells, widths, numeric, strict=True):
        shown = text if is_number else cut(text, width)
        space = " " * (width - text_width(shown))
        padded.append(space + shown if is_number else shown + space)
    return GAP.join(padded).rstrip()
