"""Captures what a snippet prints and sends it to the client, while all other threads print as before.

Used by evaluation.py around the snippet.  Invariant: sys.stdout and sys.stderr are the job's own again when no snippet
runs.  A stand-in outlives its use and goes on forwarding to the original, because the job may have kept a reference to
it, and print() in another thread only borrows its reference (CPython gh-130163).
"""

from __future__ import annotations

import os
import sys
from _thread import RLock, allocate_lock, get_ident
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any

from ...protocol import OUT, OUTPUT_LIMIT

# Output is sent when this much has been buffered, or at the end of a line at most this often.
_PIECE_CHARACTERS = 64 << 10
_PIECE_SECONDS = 0.05

Send = Callable[[str, dict[str, Any]], None]


class Output:
    """The text of one snippet, sent in pieces up to a limit; `dropped_bytes` counts what exceeds the limit."""

    def __init__(self, send: Send) -> None:
        self.dropped_bytes = 0
        self._send = send
        self._bytes_left = OUTPUT_LIMIT
        self._buffered: deque[tuple[str, str]] = deque()  # (stream, text)
        self._characters = 0  # in the buffer
        self._last_sent = 0.0
        self._sending = RLock()  # reentrant: a signal handler may print during a flush

    def write(self, stream: str, text: str) -> None:
        text = self.cut(text)
        if not text:
            return
        self._buffered.append((stream, text))
        self._characters += len(text)
        ends_line = text.endswith("\n")  # print() writes a line in parts
        if self._characters >= _PIECE_CHARACTERS or (ends_line and monotonic() - self._last_sent >= _PIECE_SECONDS):
            self.flush()

    def cut(self, text: str) -> str:
        """The part of the text that still fits under the limit; it counts as sent."""
        size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
        if size > self._bytes_left:
            data = text.encode("utf-8", "surrogatepass")
            text = data[: self._bytes_left].decode("utf-8", "ignore")
            self.dropped_bytes += size - self._bytes_left
            size = self._bytes_left
        self._bytes_left -= size
        return text

    def flush(self) -> None:
        """Send what is buffered.  Any thread."""
        with self._sending:
            self._last_sent, self._characters = monotonic(), 0
            while self._buffered:
                stream, text = self._buffered.popleft()
                pieces = [text]
                while self._buffered and self._buffered[0][0] == stream:
                    pieces.append(self._buffered.popleft()[1])
                self._send(OUT, {"stream": stream, "text": "".join(pieces)})


class _Stream:
    """Replaces sys.stdout or sys.stderr: captures threads that run a snippet, forwards all else to the original."""

    def __init__(self, name: str, original: Any) -> None:
        self._probe_name, self._probe_original = name, original

    def _probe_output(self) -> Output | None:
        output = _capturing.get(get_ident())
        return output[1] if output is not None and output[0] == os.getpid() else None  # not in a forked child

    def write(self, text: str) -> int:
        output = self._probe_output()
        if output is None:
            return self._probe_original.write(text) if self._probe_original is not None else len(text)
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        output.write(self._probe_name, text)
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        output = self._probe_output()
        if output is not None:
            output.flush()
        elif self._probe_original is not None:
            self._probe_original.flush()

    @property
    def buffer(self) -> Any:
        return self._probe_original.buffer if self._probe_output() is None else _Bytes(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._probe_original, name)


class _Bytes:
    """sys.stdout.buffer as a snippet sees it."""

    def __init__(self, stream: _Stream) -> None:
        self._stream = stream

    def write(self, data: Any) -> int:
        self._stream.write(bytes(data).decode("utf-8", "replace"))
        return len(data)

    def flush(self) -> None:
        self._stream.flush()


_STREAMS = ("stdout", "stderr")
_STAND_INS, _MOST_STAND_INS = "_probe_streams", 8  # on the sys module: the most recent stand-ins
_capturing: dict[int, tuple[int, Output]] = {}  # thread -> (pid, output of the snippet that it runs)
_changing = allocate_lock()


def capture(output: Output) -> None:
    """From now on this thread prints to `output`."""
    with _changing:
        _capturing[get_ident()] = os.getpid(), output
        for name in _STREAMS:
            original = getattr(sys, name)
            if type(original) is not _Stream:
                setattr(sys, name, _stand_in(name, original))


def _stand_in(name: str, original: Any) -> _Stream:
    """The most recent stand-ins stay on the sys module after detach; the next agent finds them there too."""
    stand_ins: list[Any] = sys.__dict__.setdefault(_STAND_INS, [])
    for stream in stand_ins:
        if type(stream) is _Stream and stream._probe_name == name and stream._probe_original is original:
            return stream
    stand_ins.append(_Stream(name, original))
    del stand_ins[:-_MOST_STAND_INS]
    return stand_ins[-1]  # type: ignore[no-any-return]


def release() -> None:
    """This thread prints as before; the last thread restores the streams."""
    with _changing:
        _capturing.pop(get_ident(), None)
        for name in _STREAMS:
            stream = getattr(sys, name)
            if not _capturing and type(stream) is _Stream:
                setattr(sys, name, stream._probe_original)
