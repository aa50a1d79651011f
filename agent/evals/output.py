"""What a snippet prints, on its way to the reader, while all other threads print as ever.

Used by evaluation.py around the snippet.  The one invariant: sys.stdout and sys.stderr are the job's own again when
no snippet runs, and a stand-in outlives its use: it passes on to them for good, for somebody may have kept it, and
print() in another thread only borrows it (CPython gh-130163).
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

_PIECE_CHARACTERS = 64 << 10
_PIECE_SECONDS = 0.05

Send = Callable[[str, dict[str, Any]], None]


class Output:
    """The text of one snippet: sent in pieces, up to a limit; what is over it is counted in `dropped_bytes`."""

    def __init__(self, send: Send) -> None:
        self.dropped_bytes = 0
        self._send = send
        self._left = OUTPUT_LIMIT
        self._waiting: deque[tuple[str, str]] = deque()
        self._characters = 0
        self._sent = 0.0
        self._sending = RLock()  # a signal handler may print in the middle of a flush

    def write(self, stream: str, text: str) -> None:
        text = self.cut(text)
        if not text:
            return
        self._waiting.append((stream, text))
        self._characters += len(text)
        whole = text.endswith("\n")  # print() writes a line in parts
        if self._characters >= _PIECE_CHARACTERS or (whole and monotonic() - self._sent >= _PIECE_SECONDS):
            self.flush()

    def cut(self, text: str) -> str:
        """As much of the text as the limit leaves; it counts as sent."""
        size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
        if size > self._left:
            data = text.encode("utf-8", "surrogatepass")
            text = data[: self._left].decode("utf-8", "ignore")
            self.dropped_bytes += size - self._left
            size = self._left
        self._left -= size
        return text

    def flush(self) -> None:
        """Send what waits; any thread."""
        with self._sending:
            self._sent, self._characters = monotonic(), 0
            while self._waiting:
                stream, text = self._waiting.popleft()
                pieces = [text]
                while self._waiting and self._waiting[0][0] == stream:
                    pieces.append(self._waiting.popleft()[1])
                self._send(OUT, {"stream": stream, "text": "".join(pieces)})


class _Stream:
    """Stands in sys.stdout or sys.stderr: threads with a snippet are captured, all else is the original's."""

    def __init__(self, name: str, original: Any) -> None:
        self._probe_name, self._probe_original = name, original

    def _probe_output(self) -> Output | None:
        output = _capturing.get(get_ident())
        return output[1] if output is not None and output[0] == os.getpid() else None  # not in a child it forked

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
    """sys.stdout.buffer of a snippet."""

    def __init__(self, stream: _Stream) -> None:
        self._stream = stream

    def write(self, data: Any) -> int:
        self._stream.write(bytes(data).decode("utf-8", "replace"))
        return len(data)

    def flush(self) -> None:
        self._stream.flush()


_STREAMS = ("stdout", "stderr")
_KEPT, _MANY = "_probe_streams", 8  # on the sys module: the stand-ins that were made last
_capturing: dict[int, tuple[int, Output]] = {}  # thread -> (process, output of the snippet that it runs)
_changing = allocate_lock()


def capture(output: Output) -> None:
    """From now on what this thread prints goes there."""
    with _changing:
        _capturing[get_ident()] = os.getpid(), output
        for name in _STREAMS:
            original = getattr(sys, name)
            if type(original) is not _Stream:
                setattr(sys, name, _stand_in(name, original))


def _stand_in(name: str, original: Any) -> _Stream:
    """The last ones stay where they are found when we are gone, by the next agent too."""
    kept: list[Any] = sys.__dict__.setdefault(_KEPT, [])
    for stream in kept:
        if type(stream) is _Stream and stream._probe_name == name and stream._probe_original is original:
            return stream
    kept.append(_Stream(name, original))
    del kept[:-_MANY]
    return kept[-1]  # type: ignore[no-any-return]


def release() -> None:
    """This thread prints as before; the last one puts the streams back."""
    with _changing:
        _capturing.pop(get_ident(), None)
        for name in _STREAMS:
            stream = getattr(sys, name)
            if not _capturing and type(stream) is _Stream:
                setattr(sys, name, stream._probe_original)
