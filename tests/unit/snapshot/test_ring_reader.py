"""What is read out of an agent's memory while it writes is what the agent would have sent."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from probe.host import agent_memory
from probe.snapshot.memory_source import RingReader
from probe.snapshot.rows import complete
from probe.streams import DEVICE, SPANS, STREAMS

WRITER = """
import mmap, os, struct, sys
from probe.agent.storage.header import Header
from probe.agent.storage.rows import Stream
from probe.host.processes import start_ticks
from probe.streams import DEVICE, SPANS, STREAMS
stream, header = Stream(SPANS, STREAMS[SPANS], 1 << 20), Header()
header.write({"id": "x", "start_ticks": start_ticks(os.getpid()), "streams": {}, "monotonic_ns": 1, "wall_ns": 1})
for number in range(1, int(sys.argv[1]) + 1):
    stream.append(*(number * factor for factor in range(1, 6)))
print(stream.capacity, flush=True)
told = mmap.mmap(int(sys.argv[3]), 8)
while sys.argv[2] == "on":
    for number in range(number + 1, number + 101):
        stream.append(*(number * factor for factor in range(1, 6)))
    told[:8] = struct.pack("=q", number)  # pack_into() would first put zeros there, which another process may see
sys.stdin.readline()
later = Stream(DEVICE, STREAMS[DEVICE], 1 << 20)
later.append(*range(len(STREAMS[DEVICE]) - 1))
print("made", flush=True)
sys.stdin.read()
"""


class Writer:
    def __init__(self, rows: int, on: str) -> None:
        self._told = os.memfd_create("position")
        os.truncate(self._told, 8)
        os.pwrite(self._told, struct.pack("=q", rows), 0)
        command = [sys.executable, "-c", WRITER, str(rows), on, str(self._told)]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, pass_fds=[self._told], **pipes)
        assert self.process.stdout is not None
        self.capacity = int(self.process.stdout.readline())
        shared = RingReader.of(self.process.pid, "x")
        assert shared is not None
        self.shared = shared

    def position(self) -> int:
        """Of a row that has been written; later ones may have been, too."""
        return int(struct.unpack("=q", os.pread(self._told, 8, 0))[0])

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()
        os.close(self._told)


@pytest.fixture
def write() -> Iterator[type[Writer]]:
    made: list[Writer] = []

    class Made(Writer):
        def __init__(self, rows: int, on: str = "off") -> None:
            super().__init__(rows, on)
            made.append(self)

    yield Made
    for each in made:
        each.end()


def read(writer: Writer, first: int, last: int, since: tuple[str, int] | None = None) -> np.ndarray:  # type: ignore[type-arg]
    begin, table = writer.shared.rows(SPANS, STREAMS[SPANS], first, last, since)
    return complete(table, begin)


@pytest.mark.parametrize("rows", [1, 5, 32_767, 32_768, 32_769, 50_000, 80_001])
def test_all_rows_are_there_wherever_the_ring_stands(write: type[Writer], rows: int) -> None:
    writer = write(rows)
    first = max(1, rows - writer.capacity + 1)
    table = read(writer, first, rows)
    lost = min(64, max(0, rows + 64 - writer.capacity))  # they may be overwritten just now
    assert table[:, -1].tolist() == list(range(first + lost, rows + 1))
    assert (table[:, :5] == table[:, -1:] * np.arange(1, 6)).all()


def test_rows_since_a_moment(write: type[Writer]) -> None:
    writer = write(50_000)
    assert read(writer, 17_300, 50_000, ("end_ns", 2 * 49_000))[0, -1] == 48_999
    assert read(writer, 17_300, 50_000, ("end_ns", 0))[0, -1] == 17_300
    assert read(writer, 17_300, 50_000, ("end_ns", 1 << 60))[:, -1].tolist() == [49_999, 50_000]


@pytest.mark.long
@pytest.mark.slow
def test_a_row_is_whole_or_not_there_while_the_agent_goes_on_writing(write: type[Writer]) -> None:
    writer, seen = write(40_000, "on"), 0
    for _ in range(300):
        last = writer.position()
        table = read(writer, max(1, last - writer.capacity + 1), last)
        assert (table[:, :5] == table[:, -1:] * np.arange(1, 6)).all()
        assert (np.diff(table[:, -1]) > 0).all()
        seen += len(table)
    assert writer.position() > 40_000 and seen > 100 * writer.capacity


def test_a_stream_that_is_made_later_is_found_and_one_that_is_not_there_is_an_error(write: type[Writer]) -> None:
    writer = write(5)
    with pytest.raises(OSError, match="no stream device"):
        writer.shared.rows(DEVICE, STREAMS[DEVICE], 1, 1)
    assert writer.process.stdin is not None and writer.process.stdout is not None
    writer.process.stdin.write("\n")
    writer.process.stdin.flush()
    assert writer.process.stdout.readline() == "made\n"
    assert writer.shared.rows(DEVICE, STREAMS[DEVICE], 1, 1)[1].tolist() == [[*range(len(STREAMS[DEVICE]) - 1), 1]]
    assert len(read(writer, 1, 5)) == 5


def test_memory_of_another_agent_or_of_several_is_not_read(write: type[Writer]) -> None:
    writer = write(5)
    assert RingReader.of(writer.process.pid, "y") is None
    assert RingReader.of(writer.process.pid, None) is None
    assert RingReader.of(os.getpid(), "x") is None
    assert agent_memory.is_alone(writer.process.pid) and not agent_memory.is_alone(os.getpid())
    writer.process.kill()
    writer.process.wait()
    with pytest.raises(OSError):
        read(writer, 1, 5)


def test_a_row_that_is_written_while_it_is_read_does_not_count(
    write: type[Writer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its number may have been read after it was written, its values before."""
    writer, preadv = write(5), os.preadv

    def late(file: int, into: Any, at: int) -> int:
        got = preadv(file, into, at)
        monkeypatch.setattr(os, "preadv", preadv)
        into[0].view(np.int64).reshape(5, -1)[2] = 0
        return got

    monkeypatch.setattr(os, "preadv", late)
    assert read(writer, 1, 5)[:, -1].tolist() == [1, 2, 4, 5]
    assert read(writer, 1, 5)[:, -1].tolist() == [1, 2, 3, 4, 5]
