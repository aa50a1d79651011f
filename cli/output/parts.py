"""A report for a person: headings on the left, lines beside them."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence

from .colours import HEADER, tell

# Commands and stacks stay whole.
_PROSE = ("Verdict", "Why", "Cost", "Evidence", "Where", "Now", "Also", "Looked", "Same", "Findings", "Note")


def show_parts(parts: Mapping[str, Sequence[str]]) -> None:
    """Print them: prose as wide as a terminal is, but whole lines, which can be searched, elsewhere."""
    indent = max(map(len, parts), default=0) + 2
    width = max(40, shutil.get_terminal_size().columns) - indent - 2
    for name, lines in parts.items():
        wraps = name in _PROSE and sys.stdout.isatty()
        for place, line in enumerate(lines):
            pieces = textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False) if wraps else [line]
            for number, piece in enumerate(pieces):
                heading = f"{'' if place or number else name:<{indent}}"
                tell(sys.stdout, heading, HEADER, f"{'  ' if number else ''}{piece}")
