"""The commands shown in the README and the docs parse, and the links and paths in them exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from probe.cli.argv import arrange
from probe.cli.program import VERBS, program

ROOT = Path(__file__).parents[3]
PROSE = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
OVERVIEW = ROOT / "docs" / "design.md"
INTERNALS = sorted((ROOT / "docs" / "internals").glob("*.md"))


def commands(path: Path) -> Iterator[list[str]]:
    """The words of each command line shown, without comments; quoted text may span lines."""
    for match in re.finditer(
        r'^(?:\$ |    )(probe (?:[^"\n]|"[^"]*")+)$', path.read_text(encoding="utf-8"), re.MULTILINE
    ):
        if path.parent.name != "reference" and "..." not in match[1]:
            yield shlex.split(match[1], comments=True)[1:]


@pytest.mark.parametrize("path", PROSE, ids=lambda path: path.name)
def test_every_command_shown_parses(path: Path) -> None:
    for words in commands(path):
        verb, *rest = arrange([word for word in words if word not in ("|", "head")], VERBS)
        with click.Context(program, **program.context_settings) as top:
            command = program.get_command(top, verb)
            assert command is not None
            command.make_context(verb, rest, parent=top)


@pytest.mark.parametrize("path", PROSE, ids=lambda path: path.name)
def test_every_link_leads_to_a_file(path: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)", path.read_text(encoding="utf-8"))
    assert [link for link in links if not (path.parent / link).exists()] == []


def test_the_readme_shows_the_headline_commands() -> None:
    assert {"why", "query", "eval", "detach"} <= {arrange(words, VERBS)[0] for words in commands(PROSE[0])}


@pytest.mark.parametrize("path", [OVERVIEW, *INTERNALS], ids=lambda path: path.name)
def test_every_source_file_named_exists(path: Path) -> None:
    """Full paths, or the end of one."""
    trees = ("agent", "cli", "docs", "probe", "tests")
    there = [f"/{each.relative_to(ROOT)}" for tree in trees for each in (ROOT / tree, *(ROOT / tree).rglob("*"))]
    named = re.findall(r"`(\w[\w./]*(?:\.py|\.md|/))`", path.read_text(encoding="utf-8"))
    ends = {name: f"/{name.rstrip('/')}" for name in named}
    assert [name for name, end in ends.items() if not any(each.endswith(end) for each in there)] == []


def test_the_overview_fits_on_two_screens() -> None:
    lines = OVERVIEW.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 120 and [line for line in lines if len(line) > 110] == []
