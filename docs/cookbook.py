"""The recipes of docs/cookbook.md.  Tests read them; running this file runs them on a job and updates their output.

    python docs/cookbook.py ENDPOINT

Invariant: a run changes only the output blocks of the page.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import probe
from probe.cli.output.result import ArrowResult
from probe.cli.output.table import render

PAGE = Path(__file__).with_suffix(".md")
_RECIPE = re.compile(
    r"(?P<title>.+)\n\n(?P<text>.+?)\n\n```sql\n(?P<sql>.+?)\n```\n(?:\n```text\n(?P<output>.*?)\n```\n)?\n*", re.DOTALL
)


@dataclass(frozen=True)
class Recipe:
    """One question: its title, how to read the answer, the SQL, and what a run printed."""

    title: str
    text: str
    sql: str
    output: str = ""

    def __str__(self) -> str:
        return f"{self.title}\n\n{self.text}\n\n```sql\n{self.sql}\n```\n\n```text\n{self.output}\n```\n"


def read() -> tuple[str, list[Recipe]]:
    """The text before the first recipe, and the recipes.  Raises ValueError for an incomplete recipe."""
    intro, *parts = PAGE.read_text(encoding="utf-8").split("\n## ")
    recipes = []
    for part in parts:
        match = _RECIPE.fullmatch(part)
        if match is None:
            raise ValueError(f"not a recipe: {part[:60]!r}")
        recipes.append(Recipe(**{name: text or "" for name, text in match.groupdict().items()}))
    return intro, recipes


def main(endpoint: str) -> None:
    intro, recipes = read()
    with probe.connect(endpoint) as job:
        answered = [replace(recipe, output=printed(job.query(recipe.sql).table)) for recipe in recipes]
    PAGE.write_text("\n## ".join([intro, *map(str, answered)]), encoding="utf-8")


def printed(table: Any) -> str:
    return "\n".join(render(ArrowResult(table)))


if __name__ == "__main__":
    main(sys.argv[1])
