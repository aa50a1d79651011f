"""What is redrawn in place on a terminal: as it can show it, or not at all."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

from probe.cli.output.progress import bar, progress
from probe.cli.shell import watch
from probe.errors import Interrupted


def test_a_bar_is_as_long_as_what_is_done() -> None:
    assert bar(0, 20, 80, "utf-8") == f"Watching {'─' * 30} 0 of 20 s"
    assert bar(10, 20, 80, "utf-8") == f"Watching {'━' * 15}{'─' * 15} 10 of 20 s"
    assert bar(20, 20, 80, "utf-8") == f"Watching {'━' * 30} 20 of 20 s"


@pytest.mark.parametrize(
    ("columns", "line"),
    [(30, f"Watching {'━' * 4}{'─' * 5} 10 of 20 s"), (21, "Watching 10 of 20 s"), (10, "Watching ")],
)
def test_a_bar_fits_into_the_line(columns: int, line: str) -> None:
    assert bar(10, 20, columns, "utf-8") == line and len(line) < columns


def test_a_terminal_without_unicode_gets_a_bar_of_ascii() -> None:
    assert bar(10, 20, 80, "ascii") == f"Watching {'#' * 15}{'-' * 15} 10 of 20 s"


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_a_terminal_that_cannot_redraw_gets_a_line(
    term: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", term)
    with progress(20):
        pass
    assert (capfd.readouterr().err == "Watching for at most 20 s.\n") is (term == "dumb")


def test_a_bar_ends_at_the_time_that_has_passed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    with progress(0.55):
        time.sleep(0.55)
    (*_, last, end) = capfd.readouterr().err.split("\r")
    assert last == bar(0.55, 0.55, 80, sys.stderr.encoding) + "\033[K" and end == "\033[K"


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_a_watched_statement_is_redrawn_only_where_that_works(
    term: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def ask(sql: str) -> None:
        raise Interrupted("Interrupted.")

    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr("sys.stdin.isatty", lambda: False)
    monkeypatch.setenv("TERM", term)
    shell: Any = SimpleNamespace(format="table", at_terminal=True, ask=ask)
    watch.watch(shell, 1, "SELECT 1")
    assert ("\x1b" in capfd.readouterr().out) is (term == "xterm")
