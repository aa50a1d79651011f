"""The questions of `probe ask`: one file each, in the folder of its subject.

A file is SQL.  The comment at its head is the question and, after an empty line, how to read the answer; both may have
Markdown's backticks.  docs/cookbook.md is made of these files.  For a new one, add its name to SUBJECTS, and run
`python docs/cookbook.py ENDPOINT` on a job that has an answer; tests/targets/varied.py must have one, too.  Invariant:
a name stays, because users type it.
"""

from __future__ import annotations

import re
from importlib.resources import files
from typing import NamedTuple

from probe.errors import UsageError
from probe.text import nearest

from ..output.result import Records

SUBJECTS = {  # each a folder, in the order in which questions are listed
    "steps": ("phases", "slow-steps", "variation", "outliers", "warmup", "change"),
    "modules": ("modules", "self-time", "backward", "uneven", "optimizers", "micro-steps", "roofline"),
    "ranks": ("late-rank", "ranks", "bandwidth", "arrivals", "in-flight"),
    "program": ("loader", "functions", "main-thread", "requests", "leak", "cores", "machine"),
    "probe": ("evals", "overhead", "retention"),
}
NAMES = {name: subject for subject, names in SUBJECTS.items() for name in names}


class Question(NamedTuple):
    """title: the question; text: how to read the answer, one paragraph; sql: what answers it."""

    name: str
    title: str
    text: str
    sql: str


def read(name: str) -> Question:
    """The question of this name.  Raises UsageError."""
    if name not in NAMES:
        raise UsageError(f"No question named {name}.", nearest(name, NAMES) or "Run: probe ask")
    file = files(__name__) / NAMES[name] / f"{name}.sql"
    head, sql = file.read_text(encoding="utf-8").split("\n\n", 1)
    title, text = re.sub("^-- ?", "", head, flags=re.MULTILINE).split("\n\n")
    return Question(name, title, " ".join(text.split("\n")), sql.rstrip("\n"))


def listed() -> Records:
    return Records(("name", "question"), [read(name)[:2] for name in NAMES])
