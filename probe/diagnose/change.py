"""What a change brought: the steps before and after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import SilentError
from .rule import Tables


@dataclass(frozen=True)
class Change:
    """What a change brought."""

    def lines(self) -> list[str]:
        return []

    def as_json(self) -> dict[str, Any]:
        return {}


def change(tables: Tables, at_step: int | None) -> Change:
    raise SilentError("Nothing has changed.", code="few-steps")
