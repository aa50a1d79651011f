"""Writes docs/cookbook.md from the questions of `probe ask` (cli/questions/): `make docs`.

    python docs/cookbook.py            keeps the output of each question that the page has
    python docs/cookbook.py ENDPOINT   asks all of them of a job and shows its answers

Invariant: what stands before the first question is the page's own.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from textwrap import fill

import probe
from probe.cli.output.result import ArrowResult
from probe.cli.output.table import render
from probe.cli.questions import NAMES, Question, read

PAGE = Path(__file__).with_suffix(".md")
_OUTPUT = re.compile(r"\n## ((?:(?!\n## ).)+?)\n.*?\n```text\n(.*?)\n```\n", re.DOTALL)


def outputs() -> dict[str, str]:
    """What a run printed, by the question's title."""
    return dict(_OUTPUT.findall(PAGE.read_text(encoding="utf-8")))


def answers(endpoint: str) -> dict[str, str]:
    with probe.connect(endpoint) as job:
        tables = {each.title: job.query(each.sql).table for each in map(read, NAMES)}
    return {title: "\n".join(render(ArrowResult(table))) for title, table in tables.items()}


def page(shown: Mapping[str, str]) -> str:
    """The whole page with these outputs, by title."""
    intro = PAGE.read_text(encoding="utf-8").split("\n## ")[0]
    return "\n## ".join([intro, *(_part(each, shown[each.title]) for each in map(read, NAMES))])


def _part(question: Question, output: str) -> str:
    text = fill(question.text, 120, break_on_hyphens=False, break_long_words=False)
    asked = f"    probe 4242 ask {question.name}"
    return f"{question.title}\n\n{asked}\n\n{text}\n\n```sql\n{question.sql}\n```\n\n```text\n{output}\n```\n"


if __name__ == "__main__":
    PAGE.write_text(page(answers(sys.argv[1]) if sys.argv[1:] else outputs()), encoding="utf-8")
