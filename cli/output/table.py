"""The table format: columns as wide as their data, numbers to the right, NULL shown as NULL.

In a terminal, numbers have three or four significant digits instead of six, long text cells are cut until a row fits,
and a row that still does not fit is shown one column a line; elsewhere nothing is cut.  No value is converted to
another unit: nobody knows that of an expression, and what stands in one row, or in WHERE, is compared.  Invariant:
pure; the width is an argument and is never asked for here.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterator, Sequence
from decimal import Decimal
from textwrap import wrap
from typing import Any

import click

from .colours import HEADER, NULL
from .printable import printable
from .result import Tabular

GAP = "  "
_LEAST, _MOST = 1e-6, 1e15  # of the largest number of a column whose numbers all have as many decimals


class _Null(str):
    """The text of a NULL, which is not a text that says so."""


_NULL = _Null("NULL")


def render(result: Tabular, width: int | None = None, coloured: bool = False) -> Iterator[str]:
    """The lines of the table.  width: of the terminal, None for no limit."""
    header = [plain(name) for name in result.names]
    widths = [text_width(name) for name in header]
    rows: list[tuple[str, ...]] = []
    for batch in result.batches():
        columns = [_texts(column, width is not None) for column in batch[: len(batch) - result.wrap_last]]
        for column in batch[len(columns) :]:  # one paragraph a line, or all on one line if the width is unlimited
            columns.append([("\n" if width else " ").join(map(plain, str(text).split("\n"))) for text in column])
        widths = [max([width, *map(text_width, texts)]) for width, texts in zip(widths, columns, strict=True)]
        rows += zip(*columns, strict=True)
    if width is not None:
        gaps = len(GAP) * (len(widths) - 1)
        widths = _fit(widths, result, width - gaps)
        if sum(widths) + gaps > width:
            yield from _vertical(header, rows, width, coloured)
            return
    first = _line(header, widths, result.numeric)
    yield click.style(first, **HEADER) if coloured else first
    yield GAP.join("-" * column for column in widths)
    for row in rows:
        for line in _wrapped(row, widths) if result.wrap_last else [row]:
            yield _line(line, widths, result.numeric, coloured)


def _texts(values: Sequence[Any], to_read: bool) -> list[str]:
    """A column.  To be read, its numbers have as many decimals as the largest needs for four significant digits."""
    floats = [float(value) for value in values if isinstance(value, (float, Decimal)) and math.isfinite(value)]
    largest = max(map(abs, floats), default=0.0)
    if not to_read or not _LEAST <= largest < _MOST or all(value == int(value) for value in floats):
        return [cell(value) for value in values]
    decimals = max(0, 3 - math.floor(math.log10(largest)))
    return [_to_read(value, decimals) if isinstance(value, (float, Decimal)) else cell(value) for value in values]


def _to_read(value: Any, decimals: int) -> str:
    """With so many decimals; a number that would have fewer than three digits then has three of its own."""
    if not math.isfinite(value):
        return cell(value)
    if not value or abs(value) * 10**decimals >= 100:
        return f"{value:.{decimals}f}"
    return f"{float(value):#.3g}".rstrip(".")


def cell(value: Any) -> str:
    """One value as text of one line."""
    if value is None:
        return _NULL
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (float, Decimal)):
        return _number(value)
    if isinstance(value, (bytes, bytearray)):
        return value.hex()
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(cell, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{plain(str(key))}: {cell(item)}" for key, item in value.items()) + "}"
    return plain(str(value))


def _number(value: Any) -> str:
    """A float or Decimal: six significant digits, every digit before the point, and none that is made up."""
    size = float(abs(value))
    if not math.isfinite(value) or (size >= 1e15 and isinstance(value, Decimal)):
        return str(value)
    if value == int(value) and size < 1e15:
        return f"{int(value)}.0" if isinstance(value, float) else str(value)
    return f"{value:.1f}" if 1e5 <= size < 1e15 else f"{float(value):.6g}"


def plain(text: str) -> str:
    """The text on one line, printable."""
    return text if text.isprintable() else printable(text).replace("\n", r"\n").replace("\t", r"\t")


def text_width(text: str) -> int:
    """The columns that a terminal needs for the widest line: wide East Asian characters two, combining marks none."""
    if "\n" in text:
        return max(map(text_width, text.split("\n")))
    return len(text) if text.isascii() else sum(map(_char_width, text))


def _char_width(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def _vertical(header: Sequence[str], rows: Sequence[Sequence[str]], width: int, coloured: bool) -> Iterator[str]:
    """Each row as a block of lines, one for each column."""
    names = max(map(text_width, header))
    for number, row in enumerate(rows, 1):
        yield f"-- row {number} ".ljust(min(width, 2 * names), "-")
        for name, text in zip(header, row, strict=True):
            line = cut(f"{name}{' ' * (names - text_width(name))}{GAP}{text}".replace("\n", " "), width)
            if coloured:
                value = line[len(name) :]
                line = click.style(line[: len(name)], **HEADER)
                line += click.style(value, **NULL) if isinstance(text, _Null) else value
            yield line


def _fit(widths: Sequence[int], result: Tabular, width: int) -> list[int]:
    """widths with the widest text columns narrowed until their sum is `width` or none can be narrowed further."""
    widths = list(widths)
    texts = [place for place, is_number in enumerate(result.numeric) if not is_number]
    for _ in range(sum(widths) - width):
        place = max(texts, key=widths.__getitem__, default=None)
        if place is None or widths[place] <= result.least_width:
            break
        widths[place] -= 1
    return widths


def cut(text: str, width: int) -> str:
    """The text, or its beginning with `…` if it is wider than `width`."""
    if text_width(text) <= width:
        return text
    kept, used = "", 1
    for char in text:
        used += _char_width(char)
        if used > width:
            break
        kept += char
    return f"{kept}…"


def _wrapped(row: Sequence[str], widths: Sequence[int]) -> list[Sequence[str]]:
    parts = [part for line in row[-1].split("\n") for part in wrap(line, widths[-1])] or [""]
    blank = [""] * (len(row) - 1)
    return [[*row[:-1], parts[0]], *([*blank, part] for part in parts[1:])]


def _line(cells: Sequence[str], widths: Sequence[int], numeric: Sequence[bool], coloured: bool = False) -> str:
    padded = []
    for text, width, is_number in zip(cells, widths, numeric, strict=True):
        shown = text if is_number else cut(text, width)
        space = " " * (width - text_width(shown))
        if coloured and isinstance(text, _Null):
            shown = click.style(shown, **NULL)
        padded.append(space + shown if is_number else shown + space)
    return GAP.join(padded).rstrip()
