"""The terminal of the tests has read all that a command has shown, however the kernel delivers it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from terminal import Terminal


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    made = Terminal("--version", state=tmp_path)
    yield made
    made.end()


def test_a_character_that_comes_in_two_pieces_is_one(terminal: Terminal) -> None:
    first, last = "…".encode()[:2], "…".encode()[2:]
    assert terminal.wait() == 0
    for piece in (first, last):
        os.write(terminal._slave, piece)
        while not terminal._read(1.0):
            pass
    assert terminal.raw.endswith("…")


@pytest.mark.parametrize("sequence", ["\x1b[?25l", "\x1b[1;31m", "\x1b]0;a title\x07", "\x1b(B", "\x1b7", "\x1b[5C"])
def test_a_sequence_of_which_half_has_come_is_not_text_yet(terminal: Terminal, sequence: str) -> None:
    assert terminal.wait() == 0
    before = terminal.text
    for piece in sequence[:-1]:
        terminal.raw += piece
        assert terminal.text == before
    terminal.raw += sequence[-1] + "x"
    assert terminal.text.removeprefix(before).strip() == "x"


def test_what_is_on_its_way_when_a_command_ends_is_waited_for(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, asked = terminal._read, list[float]()

    def late(within: float) -> bool:
        """As if the kernel had nothing yet, for the first three times after the end."""
        if terminal.process.poll() is not None:
            asked.append(within)
        return len(asked) > 3 and read(within)

    terminal.process.wait(60)
    monkeypatch.setattr(terminal, "_read", late)
    assert terminal.wait() == 0 and terminal.text.startswith("probe")
