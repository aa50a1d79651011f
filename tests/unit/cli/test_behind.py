"""What is written behind: whole and in order, with the errors of the sink, and without waiting for who reads."""

from __future__ import annotations

import io
import os
import threading
from contextlib import nullcontext
from typing import BinaryIO, cast

import pytest
from until import until

from probe.cli.output import behind
from probe.cli.output.behind import WrittenBehind, is_stuck
from probe.errors import Interrupted


class Pager(io.RawIOBase):
    """Takes nothing until it is read on; then it may break."""

    def __init__(self) -> None:
        self.begun, self.goes_on = threading.Event(), threading.Event()
        self.breaks = False
        self.taken = b""

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self.begun.set()
        self.goes_on.wait()
        if self.breaks:
            raise BrokenPipeError
        self.taken += data
        return len(data)


def to(pager: Pager) -> WrittenBehind:
    return WrittenBehind(nullcontext(cast(BinaryIO, pager)))


def never() -> bool:
    return False


def test_what_comes_is_written_in_order_while_nobody_waits() -> None:
    pager = Pager()
    sink = to(pager)
    assert sum(sink.write(each) for each in (b"one ", memoryview(b"two "), b"three")) == 13
    pager.goes_on.set()
    sink.finish(never)
    assert pager.taken == b"one two three" and not is_stuck()


def test_it_is_full_while_too_much_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(behind, "MOST_BYTES", 10)
    pager = Pager()
    sink = to(pager)
    sink.write(bytes(10))
    assert not sink.is_full
    sink.write(b"1")
    assert sink.is_full
    pager.goes_on.set()
    until(lambda: not sink.is_full)
    sink.finish(never)
    assert len(pager.taken) == 11


def test_an_interrupt_leaves_a_pager_that_takes_nothing() -> None:
    pager = Pager()
    sink = to(pager)
    sink.write(b"one")
    sink.write(b"two")
    until(pager.begun.is_set)
    with pytest.raises(Interrupted):
        sink.finish(lambda: True)
    assert is_stuck()
    pager.goes_on.set()
    until(lambda: not is_stuck())
    assert pager.taken == b"one"


def test_an_error_of_the_sink_is_raised_at_the_end_and_by_the_next_write() -> None:
    pager = Pager()
    pager.breaks = True
    pager.goes_on.set()
    sink = to(pager)
    sink.write(b"one")
    with pytest.raises(BrokenPipeError):
        sink.finish(never)
    with pytest.raises(BrokenPipeError):
        sink.write(b"two")


def test_a_file_is_closed_whatever_happens() -> None:
    for end in (lambda sink: sink.finish(never), WrittenBehind.abandon):
        reader, writer = os.pipe()
        sink = WrittenBehind(open(writer, "wb"))  # noqa: SIM115
        end(sink)
        with open(reader, "rb") as file:
            assert file.read() == b""


def test_without_a_thread_it_writes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    pager = Pager()
    pager.goes_on.set()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        sink = to(pager)
    sink.write(b"one")
    assert pager.taken == b"one" and not sink.is_full
    sink.finish(never)
    assert pager.taken == b"one"
