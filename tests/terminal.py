"""A command on a terminal of its own: typed into as a user types, its screen read as text."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

from target import PROBE

COLUMNS, LINES = 80, 24
PATIENCE_S = 60.0
END = "\0end\0"
RIGHT = re.compile(r"\x1b\[\d*C")  # over blanks
ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07]*\x07|[()][A-Z0-9]|[=>78])")
BEGUN = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*|\][^\x07\x1b]*|[()])?\Z")  # one whose rest is still on its way


class Terminal:
    """`probe` with these words, in a session of its own as below a shell.  End it.

    text: all that it has shown, without what moves the cursor or colours; raw: with it.
    """

    def __init__(self, *words: str | int, state: Path, stdout: IO[bytes] | None = None) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        self.before = termios.tcgetattr(slave)
        # asking where the cursor is needs a terminal that answers
        env = {**os.environ, "TERM": "xterm", "XDG_STATE_HOME": str(state), "PROMPT_TOOLKIT_NO_CPR": "1"}
        self.process = subprocess.Popen(
            [str(PROBE), *map(str, words)], stdin=slave, stdout=stdout or slave, stderr=slave, env=env,
            start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        self._slave = slave
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a character may come in two pieces
        self.raw = ""
        self._seen = 0

    @property
    def text(self) -> str:
        return BEGUN.sub("", ESCAPES.sub("", RIGHT.sub(" ", self.raw))).replace("\r", "").replace("\b", "")

    @property
    def settings(self) -> list[object]:
        return termios.tcgetattr(self._slave)

    def type(self, text: str, enter: bool = True) -> None:
        """Once single keys are read; what wait_for looks at begins anew."""
        end = time.monotonic() + PATIENCE_S
        while termios.tcgetattr(self._slave)[3] & termios.ICANON:
            assert time.monotonic() < end, f"reads no keys:\n{self.text}"
            self._read(0.1)
        self.press(text + "\r" * enter)

    def press(self, keys: str) -> None:
        """At once, whatever runs."""
        self._read(0)
        self._seen = len(self.text)
        os.write(self._master, keys.encode())

    def wait_for(self, pattern: str) -> str:
        """What has been shown since the last typing, once it holds the pattern; `.` matches any character."""
        end = time.monotonic() + PATIENCE_S
        while not re.search(pattern, self.text[self._seen :], re.DOTALL):
            assert time.monotonic() < end, f"no {pattern!r} after:\n{self.text[self._seen :]}"
            runs = self.process.poll() is None  # asked first: what it said last counts
            assert self._read(0.1) or runs, f"ended before {pattern!r}:\n{self.text}"
        return self.text[self._seen :]

    def wait_for_raw(self, sequence: str) -> None:
        """Until it has sent this, ever."""
        end = time.monotonic() + PATIENCE_S
        while sequence not in self.raw:
            assert time.monotonic() < end, f"no {sequence!r} in:\n{self.raw!r}"
            self._read(0.1)

    def wait(self) -> int:
        """The exit status, once it has ended."""
        end = time.monotonic() + PATIENCE_S
        while self.process.poll() is None:
            assert time.monotonic() < end, f"has not ended:\n{self.text}"
            self._read(0.1)
        os.write(self._slave, END.encode())  # after all that it said, some of which may still be on its way
        self.wait_for_raw(END)
        self.raw = self.raw.replace(END, "")
        return self.process.returncode

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        os.close(self._master)
        os.close(self._slave)

    def _read(self, within: float) -> bool:
        """Whether anything came; all that is there is taken."""
        came = False
        while select.select([self._master], [], [], 0 if came else within)[0]:
            with suppress(OSError):
                self.raw += self._decoder.decode(os.read(self._master, 65536))
            came = True
        return came
