"""What stands where a part of the agent has not come yet, or has left: a call under way may still reach for it."""

from __future__ import annotations

from typing import Any


def noop(*_: Any) -> None:
    """Takes anything."""
