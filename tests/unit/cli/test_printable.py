"""What reaches a terminal is printable, whatever a process or another user calls itself."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import sys
from collections.abc import Iterator
from typing import TextIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probe.cli.output.colours import AUTO, choose
from probe.cli.output.formats import Output
from probe.cli.output.printable import Printable, buffer_with_colours, printable, writer_of_output
from probe.cli.output.result import Records

TAKES_OVER = "\x1b]0;mine\x07\x9b2J"


@pytest.fixture
def terminal() -> Iterator[tuple[TextIO, int]]:
    """A terminal to write to, and what shows it."""
    master, slave = pty.openpty()
    with open(slave, "w", encoding="utf-8") as stream:
        yield stream, master
    os.close(master)


def shown(master: int, wanted: str) -> str:
    """What the terminal has got, once it is as long as what it should have."""
    text = ""
    while len(text) < len(wanted):
        text += os.read(master, 65536).decode().replace("\r\n", "\n")
    return text


@given(st.text())
def test_whatever_is_written_arrives_printable(text: str) -> None:
    below = io.StringIO()
    assert Printable(below).write(text) == len(text)
    assert all(char.isprintable() or char in "\n\t" for char in below.getvalue())
    if text.isprintable():
        assert below.getvalue() == text


def test_print_and_names_of_every_script() -> None:
    below = io.StringIO()
    print("Größe 大", TAKES_OVER, file=Printable(below))  # type: ignore[call-overload]
    assert below.getvalue() == "Größe 大 \\x1b]0;mine\\x07\\x9b2J\n"


def test_data_is_written_as_it_is_but_not_to_a_terminal(terminal: tuple[TextIO, int]) -> None:
    data = f"é\n{TAKES_OVER}".encode()
    file = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    Printable(file).buffer.write(data)
    assert file.buffer.getvalue() == data  # type: ignore[attr-defined]
    stream, master = terminal
    sink = Printable(stream).buffer
    for place in range(len(data)):  # characters may come in two pieces
        sink.write(data[place : place + 1])
    sink.flush()
    wanted = "é\n\\x1b]0;mine\\x07\\x9b2J"
    assert shown(master, wanted) == wanted


def test_a_snippets_colours_reach_a_terminal_and_all_it_prints_a_file(terminal: tuple[TextIO, int]) -> None:
    text = f"\x1b[1;31mred\x1b[0m 50%\r{TAKES_OVER}\x1b[2J"
    stream, master = terminal
    writer_of_output(Printable(stream))(text)
    wanted = f"\x1b[1;31mred\x1b[0m 50%\r{printable(TAKES_OVER)}\\x1b[2J"
    assert shown(master, wanted) == wanted
    below = io.StringIO()
    writer_of_output(Printable(below))(text)
    assert below.getvalue() == text


def test_our_colours_reach_a_terminal_in_whatever_pieces_they_come(terminal: tuple[TextIO, int]) -> None:
    stream, master = terminal
    sink = buffer_with_colours(Printable(stream))
    data = "\x1b[1mGröße\x1b[0m\n\x1b[2J\n".encode()
    for place in range(len(data)):
        sink.write(data[place : place + 1])
    wanted = "\x1b[1mGröße\x1b[0m\n\\x1b[2J\n"
    assert shown(master, wanted) == wanted


@pytest.mark.parametrize("colour", ["always", "never"])
def test_a_table_has_the_characters_that_the_terminal_can_show(colour: str, monkeypatch: pytest.MonkeyPatch) -> None:
    master, slave = pty.openpty()
    choose(colour)
    with open(slave, "w", encoding="latin-1", errors="backslashreplace") as stream:
        monkeypatch.setattr(sys, "stdout", Printable(stream))
        Output().write(Records(("took",), [("5 µs",), ("中",)]))
    told = b""
    with contextlib.suppress(OSError):  # EIO: all is read, and nobody has the other end
        while piece := os.read(master, 65536):
            told += piece
    os.close(master)
    choose(AUTO)
    assert b"5 \xb5s\r\n" in told and b"\\u4e2d" in told


def test_it_stands_in_for_a_stream() -> None:
    stream = Printable(sys.__stdout__)  # type: ignore[arg-type]
    assert stream.encoding == sys.__stdout__.encoding and not stream.closed  # type: ignore[union-attr]
