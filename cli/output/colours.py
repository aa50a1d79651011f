"""Colours: which streams get any, and what has which.

A verb's option --color chooses, by choose().  Invariant: without that, only a terminal gets colours, and none where
NO_COLOR is set or TERM is `dumb`; what is not ours is printable also between colours.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import click

from .printable import can_redraw, printable, unescaped

AUTO, ALWAYS, NEVER = CHOICES = ("auto", "always", "never")
# As few as the terminal's own theme makes readable on any background.
HEADER: Mapping[str, Any] = {"bold": True}
NULL: Mapping[str, Any] = {"dim": True}
NOTE: Mapping[str, Any] = {"fg": "yellow"}
ERROR: Mapping[str, Any] = {"fg": "red", "bold": True}
_chosen = SimpleNamespace(choice=AUTO)


def choose(choice: str) -> None:
    """For this process, from now on."""
    _chosen.choice = choice


def has_colours(stream: Any) -> bool:
    if _chosen.choice != AUTO:
        return bool(_chosen.choice == ALWAYS)
    return can_redraw(stream) and not os.environ.get("NO_COLOR")


def tell(stream: Any, text: str, style: Mapping[str, Any], rest: str = "") -> None:
    """Print a line: the text in this style if the stream has colours, and the rest after it."""
    if has_colours(stream):
        print(f"{click.style(printable(text), **style)}{printable(rest)}", file=unescaped(stream))
    else:
        print(f"{text}{rest}", file=stream)
