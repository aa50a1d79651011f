"""The placeholder for a callback that is not set yet or has been removed: a call in progress may still reach it."""

from __future__ import annotations

from typing import Any


def noop(*_: Any) -> None:
    """Accepts any arguments and does nothing."""
