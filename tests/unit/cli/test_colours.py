"""Colours go to terminals alone, unless the user says otherwise, and only our own."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import pytest

from probe.cli.entry import run
from probe.cli.output.colours import ERROR, choose, has_colours, tell
from probe.cli.output.printable import Printable
from probe.cli.output.result import Records
from probe.cli.output.table import render

BOLD, DIM, RED, PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[31m\x1b[1m", "\x1b[0m"

Captured = pytest.CaptureFixture[str]


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def chosen_by_nobody(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    yield
    choose("auto")


@pytest.mark.parametrize(
    ("choice", "stream", "env", "has"),
    [
        ("auto", Screen(), {}, True),
        ("auto", io.StringIO(), {}, False),
        ("auto", Screen(), {"NO_COLOR": "1"}, False),
        ("auto", Screen(), {"NO_COLOR": ""}, True),
        ("auto", Screen(), {"TERM": "dumb"}, False),
        ("never", Screen(), {}, False),
        ("always", io.StringIO(), {"NO_COLOR": "1"}, True),
    ],
)
def test_who_gets_colours(
    choice: str, stream: Any, env: dict[str, str], has: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    choose(choice)
    assert has_colours(stream) is has


@pytest.mark.parametrize("words", [["ask", "--color", "always", "x"], ["--color=always", "ask", "x"]])
def test_the_first_word_of_an_error_is_coloured(words: list[str], capsys: Captured) -> None:
    said = "No question named x. Run: probe ask\n"
    assert run(words) == 2
    assert capsys.readouterr().err == f"{RED}probe: [usage]{PLAIN} {said}"
    assert run(["ask", "x"]) == 2  # the choice is of one command
    assert capsys.readouterr().err == f"probe: [usage] {said}"


def test_text_of_others_stays_printable_beside_a_colour() -> None:
    screen = Screen()
    tell(Printable(screen), "probe: [x]", ERROR, " \x1b[2Jno\nyes")
    assert screen.getvalue() == f"{RED}probe: [x]{PLAIN} \\x1b[2Jno\nyes\n"


def test_headers_and_nulls_are_coloured_and_nothing_moves() -> None:
    result = Records(("module", "n"), [("NULL", None), (None, 7), ("\x1b[2J", 1234)])
    plain, coloured = list(render(result, 80)), list(render(result, 80, coloured=True))
    assert coloured[0] == f"{BOLD}module      n{PLAIN}"
    assert coloured[2] == f"NULL     {DIM}NULL{PLAIN}" and coloured[3] == f"{DIM}NULL{PLAIN}        7"
    assert [line.replace(BOLD, "").replace(DIM, "").replace(PLAIN, "") for line in coloured] == plain


def test_rows_that_are_shown_one_column_a_line_have_coloured_names() -> None:
    assert list(render(Records(("text", "n", "m"), [("x" * 30, 1, None)]), 20, coloured=True))[1:] == [
        f"{BOLD}text{PLAIN}  {'x' * 13}…",
        f"{BOLD}n{PLAIN}     1",
        f"{BOLD}m{PLAIN}{DIM}     NULL{PLAIN}",
    ]


def test_data_has_no_colours_even_if_they_are_wanted(capfd: Captured) -> None:
    assert run(["ask", "--color", "always"]) == 0
    assert capfd.readouterr().out.startswith(f"{BOLD}name         question{PLAIN}\n")
    assert run(["ask", "--color", "always", "--format", "json"]) == 0
    assert json.loads(capfd.readouterr().out)[0]["name"] == "phases"
